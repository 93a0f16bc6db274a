"""The peer of image writing: `curl | dd` in the same virtual machine, with the same kernel, from Debian's own programs."""

import contextlib
import re
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bmcs import virsh
from isolation import ADDRESS, PREFIX
from machines import create_disks, domain_xml
from tools import prepared
from wait import GiveUp, LabError, check_output, wait_for

# In the order in which they depend on each other.
MODULES = ["virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "failover", "net_failover",
           "virtio_net", "virtio_blk"]
PROGRAMS = ["/bin/busybox", "/usr/bin/curl", "/bin/dd"]
NODE = ADDRESS.rsplit(".", 1)[0] + ".50"

INIT = """#!/bin/busybox sh
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
for module in {modules}; do [ ! -e /modules/$module.ko ] || $bb insmod /modules/$module.ko; done
for try in $($bb seq 100); do
  [ ! -b /dev/vda ] || [ ! -e /sys/class/net/eth0 ] || break
  $bb sleep 0.1
done
$bb ip link set lo up
$bb ip address add {node}/{prefix} dev eth0
$bb ip link set eth0 up
read line </proc/cmdline
base=${{line##*peer.base=}}; base=${{base%% *}}
images=${{line##*peer.images=}}; images=${{images%% *}}
$bb wget -q -O /dev/null "$base/ready" || $bb sleep 1
IFS=,
for image in $images; do
  echo "peer begins $image"
  curl --silent --show-error --fail "$base/$image" | dd of=/dev/vda bs=1M iflag=fullblock oflag=direct conv=fsync status=none &&
    echo "peer ends $image" || echo "peer fails $image"
done
$bb poweroff -f
"""


class Cpio:
    """An archive as the kernel unpacks it (format newc)."""

    def __init__(self):
        self.parts, self.count, self.names = [], 0, set()

    def add(self, name, mode, data=b"", device=(0, 0)):
        if name in self.names:
            return
        parent = name.rpartition("/")[0]
        if parent:
            self.add(parent, stat.S_IFDIR | 0o755)
        self.names.add(name)
        self.count += 1
        raw = name.encode() + b"\0"
        fields = [self.count, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(raw), 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
        self.parts += [head, bytes(-len(head) % 4), data, bytes(-len(data) % 4)]

    def file(self, name, data, mode=0o755):
        self.add(name, stat.S_IFREG | mode, data)

    def bytes(self):
        self.add("TRAILER!!!", 0)
        return b"".join(self.parts)


def libraries(program):
    """Files that a program is linked with, the loader among them."""
    # A static one: ldd says so with status 1.
    done = subprocess.run(["ldd", program], text=True, capture_output=True, timeout=20, check=False)
    return re.findall(r"(/\S+) \(0x", done.stdout)


def build(results):
    """Initial ramdisk of the peer from installed packages and the rack's kernel package. Returns its path."""
    package = prepared("KERNEL")
    target = results / f"peer-{package.stem}.cpio"
    results.mkdir(parents=True, exist_ok=True)
    archive = Cpio()
    for folder in ("proc", "sys", "dev", "tmp"):
        archive.add(folder, stat.S_IFDIR | 0o755)
    archive.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    for program in PROGRAMS:
        if not Path(program).exists():
            raise LabError(f"{program} is not installed: run `tests/lab/packages bench`")
        for path in [program, *libraries(program)]:
            archive.file(path.lstrip("/"), Path(path).read_bytes())
    with tempfile.TemporaryDirectory(dir=results) as folder:
        check_output(["sh", "-c", 'dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --wildcards "*/virtio*" "*failover.ko*"', "sh", package, folder],
                     deadline=120)
        found = {path.name.split(".ko")[0]: path for path in Path(folder).rglob("*.ko*")}
        for name in MODULES:
            if name in found:
                archive.file(f"modules/{name}.ko", unpacked(found[name]))
    if "modules/virtio_blk.ko" not in archive.names:
        print("note: the kernel package has no module virtio_blk; it is taken to be built in", file=sys.stderr)
    archive.file("init", INIT.format(modules=" ".join(MODULES), node=NODE, prefix=PREFIX).encode())
    target.write_bytes(archive.bytes())
    return target


def unpacked(path):
    for suffix, command in ((".xz", "xz"), (".zst", "zstd")):
        if path.suffix == suffix:
            return subprocess.run([command, "-dc", path], stdout=subprocess.PIPE, check=True, timeout=60).stdout
    return path.read_bytes()


def write_images(machine, kernel, initrd, work, console, base, names, deadline):
    """Writes each image of `names` to the machine's disk. Returns the seconds for each; the machine is off afterwards."""
    create_disks(machine, work)
    direct = (f"<kernel>{kernel}</kernel><initrd>{initrd}</initrd>"
              f"<cmdline>console=ttyS0,115200 quiet peer.base={base} peer.images={','.join(names)} </cmdline></os>")
    path = Path(work, f"{machine.name}.xml")
    path.write_text(domain_xml(machine, work, console).replace("</os>", direct))
    virsh("create", path)
    seen = {}

    def ended():
        now, text = time.monotonic(), console.read_text(errors="replace") if console.exists() else ""
        for name in names:
            for word in ("begins", "ends"):
                if f"peer {word} {name}" in text:
                    seen.setdefault((word, name), now)
            if f"peer fails {name}" in text:
                raise GiveUp(f"curl | dd of {name} failed; see {console}")
        if "Kernel panic" in text:
            raise GiveUp(f"the peer's kernel panicked; see {console}")
        return ("ends", names[-1]) in seen
    try:
        wait_for("curl | dd in a machine", ended, deadline, every=0.05)
    finally:
        # It may have powered itself off.
        with contextlib.suppress(LabError):
            virsh("destroy", machine.name)
    return {name: seen["ends", name] - seen["begins", name] for name in names}
