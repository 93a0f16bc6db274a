"""What goes wrong in a rack: each fault gives the operator one clear reason on the host, and harms nothing else."""

import hashlib
import os
import socket
import struct
import subprocess
import time

from lab import (ADDRESS, BMC_ADDRESS, Disk, LabError, Machine, PASSWORD, Slipway, USERNAME, check_output, host, say, secret,
                 wait_for)

DEADLINE = 1500
# Nobody has this address: ARP is not answered.
NOBODY = "172.22.0.9"


def machines():
    # BIOS, because it starts faster. The second one is switched on only for a minute.
    return [Machine("bad-1", firmware="bios", bmc="redfish"), Machine("bad-2", firmware="bios", bmc="ipmi", disks=[Disk(bus="scsi")])]


def expect_refused(slipway, pattern, *objects):
    """An object that the API refuses; its words are checked."""
    try:
        slipway.apply(*objects)
    except LabError as error:
        if not any(word in str(error).lower() for word in pattern):
            raise LabError(f"refused, but with other words than {pattern}: {error}") from error
        say(f"refused: {error}")
        return
    raise LabError(f"accepted, and should have been refused: {objects[-1]['metadata']['name']}")


def hostile_packets(rack, slipway):
    """A DHCP packet cut at every byte, noise, and TFTP out of its root. Slipway must still be there afterwards."""
    header = bytes([1, 1, 6, 0]) + os.urandom(4) + bytes(20) + bytes.fromhex("525400badbad") + bytes(10) + bytes(192)
    packet = header + bytes.fromhex("63825363") + bytes([53, 1, 1, 60, 9]) + b"PXEClient" + bytes([93, 2, 0, 7, 55, 3, 1, 3, 6, 255])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
        for end in range(len(packet)):
            wire.sendto(packet[:end], (ADDRESS, 67))
        for size in (0, 1, 300, 576, 1400):
            wire.sendto(os.urandom(size), (ADDRESS, 67))
            wire.sendto(os.urandom(size), (ADDRESS, 69))
    for path in ("../../etc/passwd", "..%2f..%2fetc/passwd", "/etc/passwd"):
        done = subprocess.run(["curl", "--silent", "--show-error", "--max-time", "20", "--path-as-is", f"tftp://{ADDRESS}/{path}"],
                              capture_output=True, timeout=30)
        assert done.returncode != 0 and b"root:" not in done.stdout, f"TFTP served {path}"
    log = lambda: (rack.logs / "slipway.log").read_text(errors="replace")
    wait_for("the log to name the TFTP peer", lambda: any("passwd" in line and ADDRESS in line for line in log().splitlines()), 20)
    slipway.kubectl("get", "--raw", "/version")
    say("hostile DHCP and TFTP packets did no harm")


def bmc_faults(rack, slipway):
    """Faults of BMC access: no machine is switched on for them."""
    first, second = rack.machines
    # Credentials: not there, wrong, right. The last must heal the host without anything else being touched.
    slipway.apply(host(first.name, rack.bmc_url(first), first.mac, "bios"))
    slipway.wait_error(first.name, r"secret.*bad-1-bmc|bad-1-bmc.*secret")
    slipway.apply(secret("bad-1-bmc", username=USERNAME, password="wrong"))
    slipway.wait_error(first.name, r"password|credential|401|unauthori[sz]ed|authenticat")
    slipway.apply(secret("bad-2-bmc", username=USERNAME, password="wrong"),
                  host(second.name, rack.bmc_url(second), second.mac, "bios"))
    slipway.wait_error(second.name, r"password|credential|authenticat|rakp", 180)
    # The same BMC twice: the second host is told who has it. Which is the second, whole seconds say.
    known = time.time()
    wait_for("another second", lambda: int(time.time()) > int(known), 5)
    slipway.apply(secret("same-bmc-bmc", username=USERNAME, password=PASSWORD),
                  host("same-bmc", rack.bmc_url(second), "52:54:00:00:00:0c", "bios"))
    slipway.wait_error("same-bmc", rf"BMC address.*{second.name}")
    # A host in error can always be deleted.
    for name in ("same-bmc", second.name):
        slipway.kubectl("delete", "bmh", name, "--wait=false")
    for name in ("same-bmc", second.name):
        slipway.wait_gone(name, 120)
    # The same MAC address twice.
    slipway.apply(secret("same-mac-bmc", username=USERNAME, password=PASSWORD),
                  host("same-mac", rack.bmc_url(second), first.mac, "bios"))
    slipway.wait_error("same-mac", rf"{first.mac}.*{first.name}|{first.name}.*{first.mac}")
    for name, url in (("no-redfish", f"redfish://{NOBODY}/redfish/v1/Systems/1"), ("no-ipmi", f"ipmi://{NOBODY}")):
        slipway.apply(secret(f"{name}-bmc", username=USERNAME, password=PASSWORD), host(name, url, f"52:54:00:00:00:0{len(name) % 8}"))
    for name in ("no-redfish", "no-ipmi"):
        slipway.wait_error(name, rf"{NOBODY}.*(reach|answer|connect|timed out|route|respon)|(reach|answer|connect).*{NOBODY}", 180)
    expect_refused(slipway, ("scheme", "bogus"), host("bogus", f"bogus://{BMC_ADDRESS}", "52:54:00:00:00:09"))
    for name in ("same-mac", "no-redfish", "no-ipmi"):
        slipway.kubectl("delete", "bmh", name, "--wait=false")
    for name in ("same-mac", "no-redfish", "no-ipmi"):
        slipway.wait_gone(name, 120)
    assert not rack.running(first) and not rack.running(second), "a machine was switched on"


def image_files(folder):
    """Images for the faults, and one small good one, by names that tell nothing. Returns the SHA-256 of each."""
    good = folder / "small.raw"
    # With an MBR of one partition: without a partition table there is no place for a config drive.
    entry = struct.pack("<B3sB3sII", 0, b"\0" * 3, 0x83, b"\0" * 3, 2048, 2048)
    mbr = b"\0" * 446 + entry + b"\0" * 48 + b"\x55\xaa"
    good.write_bytes(mbr + (hashlib.sha256(b"lab").digest() * (8 << 15))[len(mbr):])
    check_output(["qemu-img", "create", "-q", "-f", "qcow2", folder / "large.img", "100G"])
    check_output(["qemu-img", "convert", "-O", "qcow2", good, folder / "cut.img"])
    with (folder / "cut.img").open("r+b") as file:
        file.truncate((folder / "cut.img").stat().st_size // 2)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*") if not path.is_symlink()}


def image_faults(rack, slipway):
    """Faults of images and root device hints, one after the other on one machine that was inspected."""
    name = rack.machines[0].name
    folder, url = rack.images()
    sums = image_files(folder)

    def fault(pattern, file, checksum=None, **spec):
        image = {"url": f"{url}/{file}", "checksum": checksum or sums[file], "checksumType": "sha256"}
        slipway.patch(name, {"spec": {"image": image} | spec})
        slipway.wait_error(name, pattern, 300)
        slipway.patch(name, {"spec": {"image": None, "rootDeviceHints": None}})
        slipway.wait_state(name, "available", 300, error_ends=False)

    fault(r"404|not found", "missing.raw", "0" * 64)
    fault(r"checksum|sha-?256", "small.raw", "0" * 64)
    fault(r"qcow2|truncat|end of|too short", "cut.img")
    fault(r"larger|too (big|large)|does not fit|smaller|bigger", "large.img")
    fault(r"hint", "small.raw", rootDeviceHints={"serialNumber": "NO-SUCH-DISK"})
    # And after all this the same machine takes a good image.
    slipway.patch(name, {"spec": {"image": {"url": f"{url}/small.raw", "checksum": sums["small.raw"], "checksumType": "sha256"}}})
    slipway.wait_state(name, "provisioned", 400, error_ends=False)
    slipway.wait_no_error(name)
    with rack.machines[0].disk_file(rack.work).open("rb") as disk:
        # All but the partition table, which got the config drive's entry.
        assert disk.read(1 << 20)[512:] == (folder / "small.raw").read_bytes()[512 : 1 << 20]


def silent_machine(rack, slipway):
    """A machine that never calls back: its NIC is not the one that the host names."""
    machine = rack.machines[1]
    slipway.restart(boot_deadline="25s")
    slipway.apply(secret(f"{machine.name}-bmc", username=USERNAME, password=PASSWORD),
                  host(machine.name, rack.bmc_url(machine), "52:54:00:00:00:77", "bios"))
    slipway.wait_error(machine.name, r"call|agent|within|deadline", 180)
    slipway.kubectl("delete", "bmh", machine.name, "--wait=false")
    slipway.wait_gone(machine.name, 180)
    wait_for(f"{machine.name} to be off", lambda: not rack.running(machine), 60)


def run(rack):
    slipway = Slipway(rack, host={"provisioning_retries": 100})
    slipway.build_ramdisk()
    slipway.start()
    hostile_packets(rack, slipway)
    bmc_faults(rack, slipway)
    slipway.apply(secret("bad-1-bmc", username=USERNAME, password=PASSWORD))
    slipway.wait_state("bad-1", "available", 600, error_ends=False)
    slipway.wait_no_error("bad-1")
    say("the right password healed bad-1")
    image_faults(rack, slipway)
    silent_machine(rack, slipway)
