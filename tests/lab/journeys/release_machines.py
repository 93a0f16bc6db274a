"""Two machines that are off become nodes of a release by one apply, one of them reboots, and both go to the next release by one patch.

Nothing is simulated but the processors: firmware, BMCs, ramdisk, disks, the Debian that is installed with its cloud-init and systemd, the
agent and kubectl are real. Steps are plain scripts (`lcmType: byo`), so there is no Kubernetes in it; `releases_kubeadm` has that.
"""

import shlex
import time

from lab import LabError, Slipway, prepared, say, wait_for
from release_site import MANAGER, WORKERS, ReleaseSite, objects_of_cluster, plain_releases

DEADLINE = 1500
WORKER = WORKERS[0]
NAMES = (MANAGER, WORKER)


class Installed:
    """The system on a machine's disk, by SSH with the key that the agent put there."""

    def __init__(self, site, machine):
        self.site, self.machine = site, machine

    def address(self):
        return self.site.slipway.address(self.machine)

    def run(self, *words):
        return self.site.rack.ssh.run(self.address(), shlex.join(words), user="root")


class NoSystems:
    """Machines are what they are: nobody plays their systems."""

    def follow(self):
        return {}


class MachineSite(ReleaseSite):
    """The same with the rack's own machines."""

    def __init__(self, rack):
        self.rack, self.seen, self.told = rack, {}, []
        self.slipway, self.systems, self.key = Slipway(rack), NoSystems(), rack.ssh.public

    def __exit__(self, *_):
        pass

    def wait(self, what, check, deadline):
        def checked():
            self.look()
            return check()
        return wait_for(what, checked, deadline, every=2)

    def start(self):
        self.slipway.build_ramdisk()
        self.slipway.start()
        self.run("image", "import", "debian-12", prepared("IMAGE") / "debian-12.qcow2", deadline=300)

    def add_machines(self):
        for machine in self.rack.machines:
            self.slipway.apply(*self.rack.manifests(machine))
        self.slipway.wait_states([machine.name for machine in self.rack.machines], "available", 600)

    def node_of(self, machine):
        return Installed(self, self.rack.machine(self.host_of(machine)["metadata"]["name"]))

    def reboot(self, machine):
        """A machine reboots because somebody asks, and its agent goes on."""
        node, began = self.node_of(machine), time.monotonic()
        boot = node.run("cat", "/proc/sys/kernel/random/boot_id")
        self.slipway.apply({"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "GracefulRebootRequest",
                            "metadata": {"name": "edge", "namespace": "default"}, "spec": {"machines": [machine]}})
        self.wait("the request to be worked off", lambda: self.slipway.get("gracefulrebootrequest", "edge") is None or self.asked(), 400)
        self.wait(f"{machine} to be ready", lambda: self.nodes_run("demo-1-0-0", NAMES), 200)
        if node.run("cat", "/proc/sys/kernel/random/boot_id") == boot:
            raise LabError(f"{machine} has not rebooted")
        say(f"{machine} has rebooted, and its agent goes on, {time.monotonic() - began:.0f} s after the request")

    def asked(self):
        found = self.slipway.get("gracefulrebootrequest", "edge")
        return "…" + str((found or {}).get("status"))


def run(rack):
    with MachineSite(rack) as site:
        site.start()
        plain_releases(site)
        site.add_machines()
        began = time.monotonic()
        site.apply_once(objects_of_cluster("demo-1-0-0", {"team": "a"}, [WORKER], site.key))
        site.wait("a cluster of release one", lambda: site.is_ready("demo-1-0-0", NAMES), 900)
        say(f"Ready on release one {time.monotonic() - began:.0f} s after the objects")
        site.check_first(NAMES)
        site.reboot(WORKER)
        site.upgrade_plain(NAMES, 300)
        site.delete_cluster(NAMES)
