"""UEFI HTTP boot: the firmware's own HTTP client loads iPXE from Slipway, and inspection succeeds."""

from lab import Machine, Slipway, say

DEADLINE = 500


def machines():
    return [Machine("http-1", network_boot="http")]


def run(rack):
    slipway = Slipway(rack, log_level="info,slipway::boot=debug")
    slipway.build_ramdisk()
    slipway.start()
    machine = rack.machines[0]
    slipway.apply(*rack.manifests(machine))
    slipway.wait_state(machine.name, ["preparing", "available"], 400)
    hardware = slipway.get("hardwaredata", machine.name)["spec"]["hardware"]
    assert machine.mac in [nic["mac"].lower() for nic in hardware["nics"]], hardware["nics"]
    assert "HTTP Boot" in rack.console(machine), "the firmware did not say that it boots by HTTP"
    say("HTTP boot reached the ramdisk, HardwareData is there")
