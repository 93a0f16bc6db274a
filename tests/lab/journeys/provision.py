"""The whole way: powered-off machines become running systems, go back to being available, and are forgotten."""

from lab import LabError, Slipway, say, wait_for
from life import install, wait_ssh

DEADLINE = 1500


def check_hardware(slipway, machine):
    data = slipway.get("hardwaredata", machine.name)
    if data is None:
        raise LabError(f"{machine.name} is available without HardwareData")
    hardware = data["spec"]["hardware"]
    assert hardware["cpu"]["count"] == machine.vcpus and hardware["cpu"]["arch"] == "x86_64", hardware["cpu"]
    # The firmware keeps some memory from what SMBIOS and the kernel report.
    assert machine.memory_mib * 0.75 <= hardware["ramMebibytes"] <= machine.memory_mib, hardware["ramMebibytes"]
    assert machine.mac in [nic["mac"].lower() for nic in hardware["nics"]], hardware["nics"]
    serials = [disk.get("serialNumber") for disk in hardware["storage"]]
    assert sorted(serials) == sorted(disk.serial for disk in machine.disks), hardware["storage"]
    sizes = [disk["sizeBytes"] for disk in hardware["storage"]]
    assert sizes == [disk.size_gib << 30 for disk in machine.disks], hardware["storage"]
    assert hardware["systemVendor"]["serialNumber"] == machine.name, hardware["systemVendor"]


def check_system(rack, slipway, machine):
    """What cloud-init made of the config drive, on the system that runs there."""
    where = wait_ssh(rack, slipway, machine)
    code, words = rack.ssh.status(where, "cloud-init status --wait --long", deadline=300)
    assert code == 0, f"cloud-init on {machine.name} ended with {code}: {words}"
    complaints = rack.ssh.run(where, "sudo grep -E ' - [a-z_.A-Z]+\\[(WARNING|ERROR|CRITICAL)\\]' /var/log/cloud-init.log || true")
    assert not complaints.strip(), f"cloud-init on {machine.name} complains: {complaints}"
    code, words = rack.ssh.status(where, "sudo cloud-init schema --system", deadline=120)
    assert code == 0, f"cloud-init on {machine.name} does not take its user data: {words}"
    assert rack.ssh.run(where, "hostname").strip() == machine.name
    assert rack.ssh.run(where, "cloud-id").strip() == "configdrive"
    uid = slipway.get("bmh", machine.name)["metadata"]["uid"]
    assert uid in rack.ssh.run(where, "sudo cat /run/cloud-init/instance-data-sensitive.json"), "meta data has not the host's UID"
    booted = rack.ssh.run(where, "test -d /sys/firmware/efi && echo uefi || echo bios").strip()
    assert booted == machine.firmware, booted
    gib = int(rack.ssh.run(where, "df --output=size -B1G / | tail -n 1"))
    assert gib >= machine.disks[0].size_gib - 1, f"the root file system has {gib} GiB"
    assert slipway.address(machine) == where, "the installed system changed the address"


def check_starts(rack, machine, firmware):
    """How often the machine's firmware started, until its installed system ran: by what it says on the console."""
    console = rack.console(machine)
    starts = console.count("SeaBIOS (version" if machine.firmware == "bios" else "BdsDxe: starting")
    assert starts == firmware, f"the firmware of {machine.name} started {starts} times, not {firmware}"
    kernels = console.count("] Linux version")
    assert kernels == 2, f"{kernels} kernels started on {machine.name}, not the ramdisk's and the system's"


def run(rack):
    slipway = Slipway(rack)
    slipway.build_ramdisk()
    slipway.start()
    by_kexec = [machine for machine in rack.machines if machine.firmware == "bios"]
    preparing, writing = install(rack, slipway, rack.machines, kexec=by_kexec)
    say(f"both available after {preparing:.0f} s, both provisioned {writing:.0f} s later")
    for machine in rack.machines:
        check_hardware(slipway, machine)
        assert rack.partition_table(machine) == (True, True), "no partition table where the image should be"
        check_system(rack, slipway, machine)
        check_starts(rack, machine, firmware=1 if machine in by_kexec else 2)
        status = slipway.get("bmh", machine.name)["status"]
        assert status["provisioning"]["image"]["url"] == rack.image_spec()["url"] and status["poweredOn"], status
        say(f"{machine.name}: installed system checked")
    for machine in rack.machines:
        slipway.patch(machine.name, {"spec": {"image": None, "userData": None}})
    names = [machine.name for machine in rack.machines]
    slipway.wait_states(names, "deprovisioning", 60)
    slipway.wait_states(names, "available", 400)
    for machine in rack.machines:
        assert rack.partition_table(machine) == (False, False), f"{machine.name}: the partition table survived the metadata clean"
    for machine in rack.machines:
        slipway.kubectl("delete", "bmh", machine.name, "--wait=false")
    for machine in rack.machines:
        slipway.wait_gone(machine.name)
        slipway.wait_gone(f"{machine.name}-bmc", 60, kind="secret")
        slipway.wait_gone(machine.name, 60, kind="hardwaredata")
        wait_for(f"{machine.name} to be off", lambda: not rack.running(machine), 60)
    say("both hosts are gone, and off")
