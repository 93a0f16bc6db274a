"""A control group for each node, on machines with the first version of control groups and on those with the second.

A kernel gives each controller to one of both. Where the first version has any, the nodes see that one, as systemd does.
"""

import time
import uuid
from pathlib import Path

from wait import check_output, wait_for

# Where this program mounts them for itself: the rack hides the machine's own.
MOUNTS = Path("/run/slipway-cgroups")
PREFIX = "slipway-node-"
# A group without a process that is older than this was left by a program that was killed.
STALE_SECONDS = 60


def hierarchies():
    """Of /proc/self/cgroup: (options to mount it by, name of its folder, own path) of each hierarchy that nodes are to see."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    first = [(f"none,{controllers}" if controllers.startswith("name=") else controllers, controllers.removeprefix("name="), path)
             for _, controllers, path in lines if controllers]
    if any(not options.startswith("none,") for options, _, _ in first):
        return [(options, name, path) for options, name, path in first if not options.startswith("none,") or name == "systemd"]
    return []


class Group:
    """A control group in every hierarchy, without a process yet."""

    def __init__(self, name):
        self.name = f"{PREFIX}{name}-{uuid.uuid4().hex[:8]}"
        self.first = hierarchies()
        if self.first and not any(name == "systemd" for _, name, _ in self.first):
            # A machine whose first process is not systemd.
            self.first.append(("none,name=systemd", "systemd", "/"))
        self.folders = [self.made(parent) for parent in self.parents()]

    def parents(self):
        """The folder in each hierarchy that the group goes into."""
        if not self.first:
            root = mounted("unified", "cgroup2", None)
            for controller in (root / "cgroup.controllers").read_text().split():
                try:
                    (root / "cgroup.subtree_control").write_text(f"+{controller}")
                except OSError:
                    # One that this machine gives to nobody; the kubelet says so when it misses it.
                    pass
            yield root
        for options, name, path in self.first:
            yield mounted(name, "cgroup", options) / path.lstrip("/")

    def made(self, parent):
        sweep(parent)
        folder = parent / self.name
        folder.mkdir()
        for setting in ("cpuset.cpus", "cpuset.mems"):
            # Empty in a new group of the first version, and then nothing may enter it.
            if self.first and (folder / setting).exists():
                (folder / setting).write_text((parent / setting).read_text())
        return folder

    def enter(self):
        """A shell command by which the shell enters the group."""
        return "; ".join(f"echo $$ >{folder}/cgroup.procs" for folder in self.folders)

    def mount(self, at):
        """Shell commands that mount what the node sees of control groups at a path, once it has a namespace for them."""
        if not self.first:
            return f"mount -t cgroup2 cgroup2 {at}"
        lines = [f"mount -t tmpfs -o mode=755 tmpfs {at}"]
        for options, name, _ in self.first:
            lines += [f"mkdir {at}/{name}", f"mount -t cgroup -o {options} cgroup {at}/{name}"]
        return "\n".join(lines)

    def init_arguments(self):
        """What systemd is to know of it: a container's takes its first process's arguments for the kernel's."""
        # Else it would mount the second version, too, where the group has no part.
        return ["systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=1"] if self.first else []

    def remove(self, deadline=30):
        """Waits until no process is in it, and takes it away."""
        wait_for(f"the end of the processes of {self.name}", lambda: all(gone(folder) for folder in self.folders), deadline, every=0.2)


def mounted(name, kind, options):
    """A hierarchy, mounted once for this program."""
    folder = MOUNTS / name
    if not folder.is_mount():
        folder.mkdir(parents=True, exist_ok=True)
        check_output(["mount", "-t", kind, *(["-o", options] if options else []), "cgroup", folder], deadline=20)
    return folder


def gone(folder):
    """Removes a group and those below; whether it is away. A group with a process in it stays."""
    if folder.exists():
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
        folder.rmdir()
    return True


def sweep(parent):
    """Takes away groups that a killed program left: those without a process anywhere in them."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            old = time.time() - folder.stat().st_mtime > STALE_SECONDS
            if old and not any(path.read_text() for path in folder.rglob("cgroup.procs")):
                gone(folder)
        except OSError:
            # Another program takes it away at the same moment.
            pass
