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
A figure that does not reach its target is shown as missed.

Machine: {machine}. Binary: {binary}. Peers: {peers}.

| figure | target | measured | peer in the same run | | how |
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
    "start": """**Start and memory** (`benches/run start`). A process is started, and GET /healthz is tried over TLS every half
millisecond until it answers 200; the clock runs from before `exec`. The configuration serves one network with DHCP, TFTP and
boot HTTP. "Data there" is a database of 500 Secrets; "first start ever" has an empty folder. Memory is `VmRSS` five seconds
after the first answer.""",
    "api": """**API** (`benches/run api`). One appliance gets 5,000 BareMetalHosts of the size of an inspected two-socket server (four ports,
ten disks, all processor flags), paused so that no controller works on them. `benches/api` makes the load: HTTP/2 over TLS with the
administrator's certificate, on the same machine. Gets and lists come one after the other on one connection, and whole bodies are
read. The watchers are streams on four connections; the clock runs from before the patch is sent until the last watcher has its line.
Creates come from 64 writers on four connections for five seconds, each answered when it is on disk. etcd runs as Debian ships it,
with its data on the same disk; the same program puts the same values over plain HTTP/2 (gRPC): from one client, which is the default
of etcd's own benchmark, from as many writers as ours, and from 1,000 clients as on etcd's performance page.""",
    "dhcp": """**DHCP** (`benches/run dhcp`, or `benches/dhcp/run BINARY`). perfdhcp plays 50,000 clients behind a relay over a veth
pair between two network namespaces. The rate rises until more than 1 % of the exchanges fail; then the highest rate below that is searched.
Slipway has every lease on disk before its ACK; Kea runs as Debian ships it, with memfile, which does not wait for the disk.
There are three comparisons, because perfdhcp costs more than either server: about 97 µs of processor time an exchange here, so
two processors with a server that cost nothing would reach about 20,000/s. In the first, server and clients share the machine's
processors, which measures perfdhcp as much as the server. In the second, the server has one processor and a control group limits
it to a part of that (on a kernel without such a quota: all of it), so that perfdhcp has time to spare and the server is the limit;
both servers are searched in the same steps. The third is the processor time that the server used, divided by the exchanges, at one
rate that both servers keep up with: it hardly depends on what else the machine does.""",
    "tftp": """**TFTP** (`benches/run tftp`, or `benches/tftp/run BINARY`). Real clients from Debian fetch 32 MiB over loopback, one or
four at once; what arrives is compared. The servers take turns, and the best of three rounds counts. The client's name says block size
and window: `curl-1428` asks for blocks of 1428 bytes, `w16` for windows of 16 blocks; tftp-hpa's client asks for neither. dnsmasq
does not support windows.""",
    "http": """**Boot HTTP** (`benches/run http`). curl fetches the same file of 1 GiB from Slipway and from nginx (`sendfile on`) over
loopback, one or four at once, to /dev/null. The servers take turns; the median of five rounds counts.""",
    "fleet": """**A rack of many** (`benches/run fleet`). `slipway simulate` plays the machines in one process and starts the appliance as
another; both share the machine's two processors, so the elapsed time is more than the appliance needs: see its processor time.
Every machine has a BMC (Redfish and IPMI in turn), asks DHCP through a relay as firmware, iPXE, ramdisk and system, fetches its boot
script, opens its agent's session over TLS, is inspected, wiped, written, and started from its disk. No simulated step takes time;
kernel, ramdisk and chunks are asked for and not fetched. `host.busy_limit` is the number of machines. The clock runs from the first
host's creation, which is part of it, to the last host in `provisioned`, seen by a watch.

A reconciliation is one run of the host controller for one host: it looks, decides, stores the status and does the next step, and
repeats this until it has to wait. Its time is processor time (`slipway_host_reconcile_seconds`), including reads and writes through
the API in the same process; time that it waits for BMC, disk or its turn, and the time of other programs, is left out.""",
    "agents": """**Agents of nodes** (`benches/run agents`). One appliance has a Cluster of a release with one manager and 499 workers, whose machines nobody
installs. For each there is a real `slipway node`, started with the configuration and the token of its machine's user data, on the same machine; its step writes
a file. Statuses are counted by the API's version, which every write raises. Agents share the pages of their program, which each of them counts in its `VmRSS`.""",
    "clusters": """**Clusters** (`make bench-clusters`, or `benches/run clusters`). Each cluster has a control plane of three machines and two workers,
an IPPool and data templates. All manifests are applied at once, then all versions are changed, then all Clusters are deleted. Hosts are
those of `slipway simulate`; there is one for each machine and none to spare, so that a rollout takes a machine away before it makes
one. *What stands in:* a machine whose image is written is a node at once, under its Machine's name, and its user data is not run. The API
servers of all clusters are one process (`benches/suite/workload.py`) with an address and a certificate for each: nodes, pods, Secrets and
the like are kept as they are written, and watches are answered. etcd is one that users bring, of which nobody asks for members, and the
end of certificates is noted beforehand, so that no tunnel to a pod is opened. `make cluster` and `make conformance` have real API servers and
real etcd, for one cluster. All processes share the machine's processors.

The appliance's processor time is that of the whole process from the first manifest to the last host that is available again: API, hosts,
DHCP, boot and agents of ten installations and cleanings for each cluster are part of it. Its memory is the highest since it started. The
peer are the released managers of Cluster API 1.14.2, and those of Metal3 1.14.0-rc.0 where they are given (`--program`, as for
`tests/api/managers.py`), with the same manifests, the same hosts and the same stand-in; their API server, webhooks in force, is another
appliance whose controllers are off, which is not counted as theirs.""",
    "rack": """**Machines** (`benches/run rack`). UEFI virtual machines of the virtual rack (`tests/lab`), one at a time, two virtual
processors emulated by TCG, 512 MB of memory, a blank virtio disk of 8 GiB, OVMF's own PXE client.

- *Power-on to inventory*: from the start of the machine's process, which the BMC's power-on causes, to the HardwareData object in
  a `kubectl get --watch`. The firmware's own time ends with the first packet to boot HTTP, seen on the bridge: firmware and iPXE
  are done and ask what to boot. Each image below is a new machine, so there are several samples.
- *Image on the disk*: from the moment at which the write-image step is there for the agent to the moment at which its result is
  stored; every chunk was verified, the disk was flushed. The peer is `curl URL | dd of=/dev/vda bs=1M iflag=fullblock oflag=direct
  conv=fsync` of the raw image, from nginx, in the same virtual machine definition with the same kernel, and verifies nothing; its
  time is between the lines before and after it on the serial console. The random images are a partition table with an ESP and random data: nothing in them
  can be compressed or left out.
- *Memory*: the highest resident size that the agent reports of itself, if it does; that everything runs in a machine with 512 MB
  is measured in any case.
- *Ramdisk*: size of the files `vmlinuz` and `initrd` that `slipway ramdisk build` makes from Debian's kernel package.""",
    "life": """**A machine's whole way** (`benches/run life`). One such machine after the other; its host is applied with image and user data at
once. The clock runs from the answer to that until the installed kernel's first line is on the serial console. This includes power-on,
inspection, metadata clean, import of the image, writing, config drive, and the start of the system, once by the firmware after a
power-off and once by kexec. Starts of the firmware are counted on the console.""",
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
    lines.append("\n## How to repeat it\n\n`make bench` runs everything in less than two hours; `benches/run PART` runs a part.\n")
    lines += [f"\n{REPEAT[name]}\n" for name in parts]
    return "".join(lines)
