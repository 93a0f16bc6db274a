"""BIOS PXE with an option ROM that is not iPXE: undionly.kpxe by TFTP from Slipway, then the ramdisk."""

from lab import Disk, Machine, Slipway, say

DEADLINE = 480


def machines():
    return [Machine("undi-1", firmware="bios", bmc="ipmi", network_boot="undionly", disks=[Disk(bus="sata")])]


def run(rack):
    slipway = Slipway(rack)
    slipway.build_ramdisk()
    slipway.start()
    machine = rack.machines[0]
    slipway.apply(*rack.manifests(machine))
    slipway.wait_state(machine.name, ["preparing", "available"], 400)
    assert "undionly.kpxe... ok" in rack.console(machine), "undionly.kpxe was not loaded by TFTP"
    disk = slipway.get("hardwaredata", machine.name)["spec"]["hardware"]["storage"][0]
    assert disk["serialNumber"] == machine.disks[0].serial, disk
    say("undionly.kpxe reached the ramdisk, which sees the SATA disk")
