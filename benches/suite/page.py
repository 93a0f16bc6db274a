"""docs/performance.md."""

import os
import platform
import re
import subprocess
from pathlib import Path

from figures import verdict

PEERS = ["kea-dhcp4-server", "dnsmasq-base", "nginx", "curl", "tftp-hpa", "atftp", "qemu-system-x86", "ovmf", "etcd-server"]

HEAD = """# Performance

`make bench` measures these figures and writes this page. "Peer" is another program on the same machine in the same run.
A figure that misses what it is to reach is shown as missed.

Machine: {machine}. Binary: {binary}. Peers: {peers}.

| figure | to reach | measured | peer in the same run | | how |
|---|---|---|---|---|---|
"""

ELSEWHERE = """
## Reference measured elsewhere

OpenStack Ironic 39 with its agent 13, on another machine of the same kind (two cores), with the same kind of UEFI virtual
machine under TCG. These are not from the same run and are no peers of the figures above.

| figure | Ironic |
|---|---|
| power-on to the agent's first call | 152 to 160 s, of it the firmware 24 s |
| inspection | 170 s |
| powered off to deployed | 630 s, three starts of the firmware |
| raw image written | 34 MB/s of raw size |
| memory that a node needs | 2.5 GB |
| ramdisk and kernel | 312 MB |
| server: start to first answer; resident | 1.9 s; 290 MB |
"""

REPEAT = {
    "start": """**Start and memory** (`benches/run start`). A process is started, and GET /healthz is tried over TLS every half a
millisecond until it answers 200; the clock runs from before `exec`. The configuration serves one network with DHCP, TFTP and
boot HTTP. "Data there" is a database of 500 Secrets; "first start ever" has an empty folder. Memory is `VmRSS` five seconds
after the first answer.""",
    "api": """**API** (`benches/run api`). One appliance gets 5,000 BareMetalHosts as an inspected two-socket server has them (four ports,
ten disks, all processor flags), paused so that nobody drives them. `benches/api` is the load: HTTP/2 over TLS with the
administrator's certificate, on the same machine. Gets and lists come one after the other on one connection, whole bodies are read.
The watchers are streams of four connections; the clock runs from before the patch is sent until the last of them has its line.
Creates come from 64 writers on four connections for five seconds, each answered when it is on disk. etcd runs as Debian ships it,
with its data beside; the same program puts the same values over plain HTTP/2 (gRPC): from one client, which is what etcd's own
benchmark does unless told otherwise, from as many writers as ours, and from the 1,000 that its performance page adds.""",
    "dhcp": """**DHCP** (`benches/run dhcp`, or `benches/dhcp/run BINARY`). perfdhcp plays 50,000 clients behind a relay over a veth
pair between two network namespaces. The rate rises until more than 1 % of the exchanges fail, then the edge is searched.
Slipway has every lease on disk before its ACK; Kea runs as Debian ships it, with memfile, which does not wait for the disk.
Three comparisons, because perfdhcp costs more than either server: about 97 µs of processor time an exchange here, so that
two processors with a server that cost nothing would end near 20,000/s. First servers and clients share the machine's
processors, which measures perfdhcp as much as the servers. Then the server has one processor and a control group holds it to a
part of that (a kernel without such a quota: all of it), so that perfdhcp has time to spare and the server is the limit; both
search their edge in the same steps. And the processor time that the server used, divided by the exchanges, at one rate that
both keep up with: it hardly depends on what else the machine does.""",
    "tftp": """**TFTP** (`benches/run tftp`, or `benches/tftp/run BINARY`). Real clients from Debian fetch 32 MiB over loopback, one or
four at once; what arrives is compared. The servers take turns, and the best of three rounds counts. The client's name says block size
and window: `curl-1428` asks for blocks of 1428 bytes, `w16` for windows of 16 blocks; tftp-hpa's client asks for nothing. dnsmasq
knows no windows.""",
    "http": """**Boot HTTP** (`benches/run http`). curl fetches the same file of 1 GiB from Slipway and from nginx (`sendfile on`) over
loopback, one or four at once, to /dev/null. The servers take turns; the median of five rounds counts.""",
    "fleet": """**A rack of many** (`benches/run fleet`). `slipway simulate` plays the machines in one process and starts the appliance as
another; both share the machine's two processors, so the seconds are more than the appliance's own, which its processor time says.
Every machine has a BMC (Redfish and IPMI in turn), asks DHCP through a relay as firmware, iPXE, ramdisk and system, fetches its boot
script, opens its agent's session over TLS, is inspected, wiped, written, started from its disk. Nothing is simulated to take time;
kernel, ramdisk and chunks are asked for and not fetched. `host.busy_limit` is the number of machines. The clock runs from the first
host's creation, which is part of it, to the last host in `provisioned`, seen by a watch.

A reconciliation is one run of the host controller for one host: it looks, decides, stores the status, does what is next, and again
until it has to wait. Its time is what a processor works on it (`slipway_host_reconcile_seconds`), reading and writing through the
API in the same process included; waiting for BMC, disk and its turn is left out, and so are other programs on the same processors.""",
    "rack": """**Machines** (`benches/run rack`). UEFI virtual machines of the virtual rack (`tests/lab`), one at a time, two virtual
processors emulated by TCG, 512 MB of memory, a blank virtio disk of 8 GiB, OVMF's own PXE client.

- *Power-on to inventory*: from the start of the machine's process, which the BMC's power-on causes, to the HardwareData object in
  a `kubectl get --watch`. The firmware's own time ends with the first packet to boot HTTP, seen on the bridge: firmware and iPXE
  are done and ask what to boot. Each image below is a new machine, so there are several samples.
- *Image on the disk*: from the moment at which the write-image step is there for the agent to the moment at which its result is
  stored; every chunk was verified, the disk was flushed. The peer is `curl URL | dd of=/dev/vda bs=1M iflag=fullblock oflag=direct
  conv=fsync` of the raw image in the same virtual machine definition with the same kernel, nothing verified, from nginx; by the
  serial console's lines before and after. The random images are a partition table with an ESP and random data: nothing in them
  can be compressed or left out.
- *Memory*: what the agent says of its own highest resident size, when it does; that the whole runs in a machine with 512 MB is
  measured in any case.
- *Ramdisk*: size of the files `vmlinuz` and `initrd` that `slipway ramdisk build` makes from Debian's kernel package.""",
    "life": """**A machine's whole way** (`benches/run life`). One such machine after the other, its host applied with image and user data at
once. The clock runs from the answer to that until the installed kernel's first line is on the serial console: power-on, inspection,
metadata clean, import of the image, writing, config drive, and the start of the system, once by the firmware after a power-off and once
by kexec. Starts of the firmware are counted on the console.""",
}


def machine():
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) / 1e6
    system = re.search(r'PRETTY_NAME="(.*)"', Path("/etc/os-release").read_text())
    return (f"{os.cpu_count()} × {cpu[1] if cpu else platform.machine()}, {memory:.0f} GB of memory, Linux {platform.release()}, "
            f"{system[1] if system else 'unknown system'}")


def versions():
    out = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *PEERS], text=True, capture_output=True, timeout=30, check=False)
    return ", ".join(out.stdout.split("\n")[:-1]) or "unknown"


def describe(binary):
    words = subprocess.run([binary, "--version"], text=True, capture_output=True, timeout=10, check=False).stdout.strip()
    return f"{words or 'slipway'}, {Path(binary).stat().st_size / 1e6:.1f} MB, static"


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def render(parts, binary):
    """The page. `parts` by name; None for one that was never measured."""
    lines = [HEAD.format(machine=machine(), binary=describe(binary), peers=versions())]
    for name, part in parts.items():
        if part is None:
            lines.append(f"| {name} | | not measured | | | |\n")
            continue
        for figure in part.figures:
            mark = verdict(figure).replace("MISSED", "**missed**")
            lines.append("| " + " | ".join(cell(text) for text in (figure.name, figure.goal, figure.measured, figure.peer, mark, figure.how)) + " |\n")
        if part.error:
            lines.append(f"| {name} | | measuring ended early: {cell(part.error)} | | | |\n")
    lines.append("\n## When\n\n")
    for name, part in parts.items():
        if part is not None:
            lines.append(f"- {name}: {part.when}, {part.seconds:.0f} s; load average before it {part.load}; other programs took "
                         f"{part.others or 'an unknown share'} of the processors meanwhile\n")
    notes = [note for part in parts.values() if part is not None for note in part.notes]
    if notes:
        lines += ["\n## Notes\n\n", *(f"- {note}\n" for note in notes)]
    lines.append(ELSEWHERE)
    lines.append("\n## How to repeat it\n\n`make bench` runs everything in at most an hour; `benches/run PART` runs a part.\n")
    lines += [f"\n{REPEAT[name]}\n" for name in parts]
    return "".join(lines)
