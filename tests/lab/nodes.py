"""Kubernetes nodes without virtual machines: each a Debian 12 under its own systemd, in namespaces of its own.

A node has network, mount, process, UTS, IPC and control group namespaces, an interface on a bridge, an overlay over the tree
of `node_root.py`, and the machine's kernel. What it is to be it learns as a provisioned machine does: cloud-init reads the
content of a config drive. Only inside the rack's namespaces (`isolation.py`), with which nodes end.
"""

import hashlib
import ipaddress
import json
import os
import shlex
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import node_image
import node_root
import oci
import programs
from cgroups import Group
from isolation import BRIDGE
from wait import GiveUp, LabError, check_output, say, short, wait_for

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What the kubelet would otherwise set for the whole machine: nodes see these values, and it leaves them alone.
KERNEL_SETTINGS = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
                   "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000}
# Folders that are no overlay, because containerd makes overlays below one, and etcd syncs into another.
STATE = ("var/lib/containerd", "var/lib/kubelet", "var/lib/etcd")
DEVICES = "null zero full random urandom tty kmsg"
DRIVE = "var/lib/cloud/seed/config_drive/openstack/latest"

# From "unshare" on: the node's first process. It waits for a line, that the interface is there, before it becomes systemd.
# Of the machine's settings only those of its own network are its to change.
BOOT = r"""
set -e
cd {folder}
mount -t overlay -o lowerdir={lower},upperdir=upper,workdir=work overlay root
for state in {state}; do mkdir -p root/$state state/$state; mount --bind state/$state root/$state; done
cd root
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount --bind proc/sys/net proc/sys/net
{settings}
mount -o remount,bind,ro proc/sys
mount -t sysfs sysfs sys
mount -o remount,bind,ro sys
{cgroups}
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for name in {devices}; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
hostname {name}
ip link set lo up
read -r go
pivot_root . mnt
cd /
umount -l /mnt
mount --make-rshared /
exec env -i container=lab PATH={path} /sbin/init --log-target=journal {init} </dev/null
"""


def prepare(*versions):
    """Makes what nodes of some versions of Kubernetes need, before the namespaces are entered: inside is no network."""
    for version in versions or (programs.KUBERNETES,):
        programs.programs(*node_image.PROGRAMS, version=version)
        oci.archives(version)
    node_root.root()


def mac_of(name):
    """A MAC address that is the same in every run."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"52:54:00:{digest[0:2]}:{digest[2:4]}:{digest[4:6]}"


class Nodes:
    """The nodes of a run: what they share, and their end. Use it from one thread: a node ends with the thread that started it.

    `registry` is the URL of a registry that stands for registry.k8s.io; `pods` is what the nodes' pod networks are cut from.
    """

    def __init__(self, work, logs, registry=None, bridge=BRIDGE, pods="10.244.0.0/16"):
        self.work, self.logs, self.registry, self.bridge = Path(work, "nodes"), Path(logs), registry, bridge
        self.subnets = (str(subnet) for subnet in ipaddress.ip_network(pods).subnets(new_prefix=24))
        # By their names; those that are switched off, too.
        self.nodes = {}

    def layers(self, version):
        """What a node's own files lie over: the image of a version of Kubernetes, or of none, made once in a run, and the root."""
        folder = self.work / f"image-{version or 'plain'}"
        if not folder.exists():
            node_image.make(folder, self.registry, version)
        return f"{folder}:{node_root.root()}"

    def start(self, name, drive, mac=None, version=programs.KUBERNETES, files=None):
        """Installs a node and switches it on.

        `drive` is its config drive's content (`drives.py`), `files` are some of its own beside those of the image.
        """
        node = self.nodes[name] = Node(self, name, mac or mac_of(name), version)
        node.install(drive, files or {})
        node.switch_on()
        return node

    def route_pods(self):
        """Tells each node by which other one the pods of that are reached. Again when a node has come."""
        running = {node: address for node in self.nodes.values() if node.runs() and (address := node.address())}
        for node in running:
            for other, address in running.items():
                if other is not node:
                    node.run("ip", "route", "replace", other.pods, "via", address)

    def stop(self):
        """Ends every node and leaves their journals in the logs folder."""
        for node in list(self.nodes.values()):
            node.remove()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Node:
    """A node: what is on its disk and, while it is switched on, its processes."""

    def __init__(self, nodes, name, mac, version):
        self.nodes, self.name, self.mac, self.version = nodes, name, mac, version
        self.folder, self.pods = nodes.work / name, next(nodes.subnets)
        self.process = self.group = self.pid = None
        self.began = time.monotonic()

    # ── its life ──

    def install(self, drive, files):
        """A fresh disk, with a config drive."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("upper", "work", "root", "state"):
            (self.folder / name).mkdir(parents=True)
        own = {"etc/machine-id": f"{uuid.uuid4().hex}\n", "etc/cni/net.d/10-bridge.conflist": node_image.pod_network(self.pods)}
        node_image.write_files(self.folder / "upper", own | {f"{DRIVE}/{path}": text for path, text in drive.items()} | files)
        node_image.write_files(self.folder / "settings", {path.replace("/", "_"): f"{value}\n" for path, value in KERNEL_SETTINGS.items()})

    def switch_on(self):
        """Its first process runs when this returns; what systemd and cloud-init make of it is to be waited for."""
        self.group = Group(self.name)
        settings = "\n".join(f"mount --bind ../settings/{path.replace('/', '_')} proc/sys/{path}" for path in KERNEL_SETTINGS)
        boot = BOOT.format(folder=shlex.quote(str(self.folder)), lower=self.nodes.layers(self.version), state=" ".join(STATE),
                           settings=settings, cgroups=self.group.mount("sys/fs/cgroup"), devices=DEVICES, name=self.name, path=PATH,
                           init=" ".join(self.group.init_arguments()))
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--cgroup", "--mount", "--pid", "--fork", "--kill-child", "--net", "--uts",
                   "--ipc", "--propagation", "private", "sh", "-c", boot]
        with (self.nodes.logs / f"{self.name}.console").open("ab") as log:
            self.process = subprocess.Popen(["sh", "-c", f'{self.group.enter()}; exec "$@"', "sh", *command], stdin=subprocess.PIPE,
                                            stdout=log, stderr=log)
        self.began = time.monotonic()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.pid = wait_for(f"{self.name}'s first process", self.alive(lambda: children.read_text().split()), 20, every=0.05)[0]
        self.connect()
        self.process.stdin.write(b"go\n")
        self.process.stdin.close()

    def connect(self):
        """Its interface eth0, on the bridge."""
        # Another each time: that of a node whose power was cut may be there for a moment yet.
        outer = f"v{uuid.uuid4().hex[:10]}"
        check_output(["ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "address", self.mac, "netns", self.pid], deadline=20)
        check_output(["ip", "link", "set", outer, "master", self.nodes.bridge, "up"], deadline=20)

    def alive(self, check):
        """A check that ends its wait when the node has ended."""
        def checked():
            if not self.runs():
                said = (self.nodes.logs / f"{self.name}.console").read_text(errors="replace")
                raise GiveUp(f"{self.name} has ended: {short(said[-500:]) or 'it said nothing'}")
            return check()
        return checked

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def cut_power(self):
        """Ends it at once; its disk stays as it is. `unshare` passes no other signal on than this one."""
        if self.process is None:
            return
        if self.runs():
            self.keep_logs()
            self.process.kill()
        self.process.wait(timeout=30)
        self.process = None
        self.group.remove()

    def remove(self):
        """Ends it and takes its disk away."""
        self.cut_power()
        self.nodes.nodes.pop(self.name, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def keep_logs(self):
        """What it said, for who looks for a fault."""
        for end, command in (("journal.log", ["journalctl", "--no-pager", "-o", "short-monotonic"]),
                             ("cloud-init.log", ["cat", "/var/log/cloud-init-output.log"])):
            try:
                (self.nodes.logs / f"{self.name}.{end}").write_text(self.run(*command, deadline=30))
            except (LabError, OSError):
                pass

    # ── what is done with it ──

    def run(self, *command, deadline=60, given=None):
        """Standard output of a command inside, as root; a failure is a LabError with its words."""
        inside = ["nsenter", "-t", self.pid, "--all", "--wd=/", "env", "-i", f"PATH={PATH}", "HOME=/root", "TERM=dumb"]
        return check_output([*inside, *command], deadline, input=given, cwd="/")

    def kubectl(self, *arguments, deadline=60, given=None):
        """kubectl inside with the administrator's kubeconfig, on a node that kubeadm made a control plane of."""
        return self.run("kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf", "--request-timeout", "30s", *arguments, deadline=deadline, given=given)

    def node_ready(self, name):
        """Whether the cluster says that one of its nodes is ready; if not, what it says."""
        for found in json.loads(self.kubectl("get", "node", name, "-o", "json"))["status"].get("conditions", []):
            if found["type"] == "Ready":
                return True if found["status"] == "True" else f"…{found.get('message')}"
        return "…no condition"

    def wait_cloud_init(self, deadline=600):
        """Waits until cloud-init has done everything its user data says, runcmd too. What went wrong is a LabError."""
        def done():
            try:
                return json.loads(self.run("cat", "/run/cloud-init/result.json"))["v1"]
            except LabError:
                return "…" + short(self.output(1) or "nothing yet", 120)
        result = wait_for(f"cloud-init on {self.name}", self.alive(done), deadline, every=0.5)
        if result["errors"]:
            raise LabError(f"cloud-init on {self.name}: {'; '.join(result['errors'])}: {short(self.output(40), 2500)}")
        say(f"{self.name}: cloud-init is done {time.monotonic() - self.began:.1f} s after its start")

    def output(self, lines):
        """The last lines that cloud-init's commands wrote."""
        return self.run("sh", "-c", f"tail -n {lines} /var/log/cloud-init-output.log 2>/dev/null || true").strip()

    def address(self):
        """Its first IPv4 address, or None while it has none."""
        found = [address["local"] for link in json.loads(self.run("ip", "-j", "-4", "address", "show", "eth0")) for address in link["addr_info"]]
        return found[0] if found else None
