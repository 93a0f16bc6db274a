"""A world of its own for the rack: mount, network and process namespaces that end with the program.

The machine below is not changed. Whatever ends the program (its end, Ctrl-C, kill, kill -9) ends every process of the rack
and takes bridge, taps and mounts with it, because the kernel takes namespaces down when their last process goes:

    rack ─ setpriv --pdeathsig KILL ─ unshare --kill-child ─ PID 1: reaper ─ the program again, inside
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tools import CACHE, TOP
from wait import LabError, check_output, short

INSIDE = "SLIPWAY_LAB_INSIDE"
# The lab's addresses.
BRIDGE = "br0"
ADDRESS = "172.22.0.1"
BMC_ADDRESS = "172.22.0.2"
PREFIX = 24
# What libvirt would share with the machine's own.
PRIVATE = ["/run", "/etc/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt"]


def enter():
    """Runs this program again inside new namespaces and exits with its status. Returns at once when already inside."""
    if os.environ.get(INSIDE):
        return
    if os.geteuid() != 0:
        os.execvp("sudo", ["sudo", sys.executable, *sys.argv])
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child",
               "--mount-proc", sys.executable, *sys.argv]
    process = subprocess.Popen(command, env=os.environ | {INSIDE: "1"})
    # Without a handler SIGTERM ends this process at once, and the kernel everything below it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        sys.exit(process.wait())
    except KeyboardInterrupt:
        # The terminal sent it to everybody; what is inside tidies its logs up.
        try:
            process.wait(timeout=10)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()
        sys.exit(130)


def reap():
    """Splits PID 1 off: it waits for every orphan, as libvirt's machines are. Returns in the process that goes on."""
    if os.getpid() != 1:
        return
    child = os.fork()
    if child == 0:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def make_inside(folder, run):
    """Makes a folder that the machine does not have, below an overlay so that the machine does not get it."""
    parent = folder.parent
    layer = Path("/run/layers", folder.as_posix().replace("/", "-"))
    for name in ("upper", "work"):
        (layer / name).mkdir(parents=True)
    if not any(path.is_relative_to(parent) for path in (TOP, CACHE)):
        # Nothing else that is written below the parent may be lost when the overlay goes.
        run("mount", "-t", "overlay", "-o", f"lowerdir={parent},upperdir={layer}/upper,workdir={layer}/work", "overlay", parent)
    folder.mkdir()


def arrange():
    """Private folders, the loopback interface and the rack's bridge. Only inside."""
    run = lambda *command: check_output(command, deadline=20)
    run("mount", "--make-rprivate", "/")
    try:
        # Shows the interfaces of this network namespace; some containers do not allow it, and little depends on it.
        run("mount", "-t", "sysfs", "sysfs", "/sys")
    except LabError as error:
        print(f"note: /sys stays as it is: {short(error, 100)}", file=sys.stderr)
    for folder in PRIVATE:
        if not Path(folder).is_dir():
            make_inside(Path(folder), run)
        run("mount", "-t", "tmpfs", "-o", "mode=755,size=64m", "tmpfs", folder)
    Path("/run/lock").mkdir(parents=True)
    # The user that libvirt's QEMU driver looks up at start, though its configuration names another. Debian makes it in a
    # package that also installs a service; here it is known inside only.
    for name, line in (("passwd", "libvirt-qemu:x:64055:64055::/:/usr/sbin/nologin\n"), ("group", "libvirt-qemu:x:64055:\n")):
        text = Path("/etc", name).read_text()
        if "\nlibvirt-qemu:" not in text:
            Path("/run", name).write_text(text + line)
            run("mount", "--bind", f"/run/{name}", f"/etc/{name}")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", BRIDGE, "address", "52:54:00:22:00:01", "type", "bridge", "stp_state", "0", "forward_delay", "0",
        "mcast_snooping", "0")
    run("ip", "address", "add", f"{ADDRESS}/{PREFIX}", "dev", BRIDGE)
    run("ip", "address", "add", f"{BMC_ADDRESS}/{PREFIX}", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
