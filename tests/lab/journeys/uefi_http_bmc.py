"""UEFI HTTP by the BMC: Redfish is given the URL of the boot ISO, and inspection succeeds without a boot server's answer.

The emulator fetches HttpBootUri itself and lets the firmware boot it as a CD; how firmware loads a URL by itself is the
journey `uefi_http`.
"""

from lab import Machine, Slipway, say

DEADLINE = 500


def machines():
    return [Machine("url-1", bmc="redfish-uefihttp")]


def run(rack):
    slipway = Slipway(rack, log_level="info,slipway::bmc=debug")
    slipway.build_ramdisk()
    slipway.start()
    machine = rack.machines[0]
    slipway.apply(*rack.manifests(machine))
    slipway.wait_state(machine.name, ["preparing", "available"], 400)
    hardware = slipway.get("hardwaredata", machine.name)["spec"]["hardware"]
    assert machine.mac in [nic["mac"].lower() for nic in hardware["nics"]], hardware["nics"]
    assert "iPXE" not in rack.console(machine), "the machine went through iPXE"
    say("a URL set by Redfish reached the ramdisk, HardwareData is there")
