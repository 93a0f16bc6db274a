"""A site whose clusters come from releases: machines are simulated, and what they become is a real Debian under its own systemd, whose
cloud-init carries out the user data of the host. So the agent is installed as on any node, and does the steps itself.
"""

import hashlib
import json
import os
import re
import signal
import time

import isolation
import node_root
from appliance import Slipway
from nodes import Nodes
from nodes import prepare as prepare_nodes
from programs import KUBERNETES, program
from systems import Systems
from wait import LabError, check_output, say, short, wait_for

BEFORE, AFTER = "1.34.3", KUBERNETES
CLUSTER = "edge"
ENDPOINT = "172.22.0.10"
RELAY = "172.22.0.9"
MANAGER, WORKERS = "edge-cp-0", ("edge-w-0", "edge-w-1")
NAMES = (MANAGER, *WORKERS)
# Nobody answers at the address of the DNS server. Without one CoreDNS would ask itself, and end.
NETWORK = (f'[[network]]\nname = "provisioning"\ninterface = "{isolation.BRIDGE}"\nsubnet = "172.22.0.0/{isolation.PREFIX}"\n'
           f'pool = ["172.22.0.100-172.22.0.199"]\nserver = "{isolation.ADDRESS}"\nrouter = "{isolation.ADDRESS}"\ndns = ["{isolation.ADDRESS}"]\n')
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1wVcCkjY7bVYxqKLyV0Yd9wzWbBvN0cZ8QyC3rXk2n ops"
# What a user's own user data leaves, beside the agent.
OWN = "/var/lib/of-the-user"
# What steps of plain releases fetch, and where they note what they did.
GREETING = b"hello from the appliance\n"
DONE = "/var/lib/demo"


def prepare(with_kubernetes=False):
    """What such a site needs from outside, before the namespaces are entered."""
    if with_kubernetes:
        prepare_nodes(BEFORE, AFTER)
        program("helm")
    else:
        node_root.root()


class ReleaseSite:
    """The appliance of a rack, three simulated machines that are off, and what they become. To be left as a context."""

    # Of the PublicKey that the cluster names.
    key = KEY

    def __init__(self, rack):
        self.rack, self.seen, self.told = rack, {}, []
        self.slipway = Slipway(rack, networks=NETWORK)
        (rack.work / "nodes").mkdir()
        self.nodes = Nodes(rack.work, rack.logs)
        self.systems = Systems(self.slipway, self.nodes, version_of=lambda host: None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.nodes.stop()

    def run(self, *arguments, deadline=120):
        """Output of a command of slipway, against this appliance."""
        return check_output([self.slipway.program, *arguments], deadline, env=os.environ | {"KUBECONFIG": str(self.slipway.kubeconfig)})

    def start(self):
        """The appliance runs, and has the image that nodes get."""
        self.slipway.build_ramdisk()
        check_output(["ip", "address", "add", f"{RELAY}/{isolation.PREFIX}", "dev", isolation.BRIDGE], deadline=20)
        self.slipway.start()
        disk = self.rack.work / "debian-12.raw"
        # What is on it is `nodes.py`'s part.
        disk.write_bytes(b"debian-12".ljust(1 << 20, b"\0"))
        self.run("image", "import", "debian-12", disk, "--format", "raw")

    def publish(self, name, folder):
        """A folder of files that nodes fetch."""
        self.run("image", "import", name, folder, "--format", "packages", "--publish")

    def add_machines(self):
        """Machines that are off come into the rack, and become hosts."""
        self.rack.daemons.start("machines", [
            self.slipway.program, "simulate", "--kubeconfig", self.slipway.kubeconfig, "--relay", RELAY, "--dhcp", isolation.ADDRESS,
            "--namespace", "default", "--machines", len(NAMES), "--until", "available", "--stay", "--keep", "--deadline", "2h",
            "--bmc-address", isolation.BMC_ADDRESS, "--bmc", "redfish", "--boot", "ipxe", "--download", "head"])
        wait_for(f"{len(NAMES)} hosts", lambda: len(self.slipway.list("bmh")) == len(NAMES), 60)
        self.slipway.wait_states([host["metadata"]["name"] for host in self.slipway.list("bmh")], "available", 300)

    def kill(self):
        """The appliance loses its power, and comes back."""
        process = self.rack.daemons.running.pop("slipway")
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=20)
        self.slipway.start()

    # ── what becomes of it ──

    def wait(self, what, check, deadline):
        """Waits while machines live on, and says each change of a node."""
        def checked():
            self.rack.daemons.check("machines")
            self.systems.follow()
            self.nodes.route_pods()
            self.look()
            return check()
        return wait_for(what, checked, deadline, every=0.7)

    def look(self):
        """What each node is, and the order in which they came to be it."""
        for item in self.slipway.list("lcmmachines"):
            name, status = item["metadata"]["name"], item.get("status", {})
            now = (status.get("state", "new"), item["spec"].get("release", ""), status.get("release", ""))
            if self.seen.get(name) != now:
                self.seen[name] = now
                self.told.append((name, *now))
                say(f"{name}: {now[0]}, to run {now[1] or 'nothing'}, runs {now[2] or 'nothing'}")

    def cluster(self):
        return self.slipway.get("clusters.cluster.k8s.io", CLUSTER)

    def nodes_run(self, release, names=NAMES):
        """Whether every node is Ready on a release; if not, what each says."""
        machines = {item["metadata"]["name"]: item for item in self.slipway.list("lcmmachines")}
        rest = []
        for name in names:
            status = machines.get(name, {}).get("status", {})
            if (status.get("state"), status.get("release")) != ("Ready", release):
                rest.append(f"{name} {status.get('state', 'new')}: {trouble(status)}")
        return not rest or "…" + "; ".join(rest)

    def is_ready(self, release, names=NAMES):
        """Whether nodes, Machines and Cluster all say that they are ready on a release; if not, what is missing."""
        run = self.nodes_run(release, names)
        if run is not True:
            return run
        for name in names:
            noted = self.slipway.get("machines.cluster.k8s.io", name).get("status", {}).get("providerStatus", {})
            if (noted.get("status"), noted.get("ready")) != ("Ready", True):
                return f"…Machine {name}: {short(noted.get('conditions'), 600)}"
        status = self.cluster().get("status", {})
        ready = next((one for one in status.get("conditions", []) if one["type"] == "Ready"), {})
        provider = status.get("providerStatus", {})
        if ready.get("status") != "True" or provider.get("releaseRefs", {}).get("current", {}).get("name") != release:
            return f"…Cluster: {ready.get('message') or short(status, 600)}"
        wanted = {"ready": len(names), "requested": len(names)}
        return provider.get("nodes") == wanted or f"…Cluster: nodes {provider.get('nodes')}"

    def has_system(self):
        """Whether a host has become a system; if not, what its Machines say."""
        said = []
        for item in self.slipway.list("machines.cluster.k8s.io"):
            status = item.get("status", {})
            found = [one.get("message") for one in status.get("conditions", []) if one.get("status") == "False" and one.get("message")]
            said.append(f"{item['metadata']['name']}: {status.get('errorMessage') or '; '.join(found)}")
        return bool(self.systems.installed) or "…" + short("; ".join(said), 900)

    def host_of(self, machine):
        """The host of a Machine."""
        for host in self.slipway.list("bmh"):
            if (host["spec"].get("consumerRef") or {}).get("name", "") == machine:
                return host
        raise LabError(f"{machine} has no host")

    def node_of(self, machine):
        """The system that a Machine became."""
        return self.nodes.nodes[self.host_of(machine)["metadata"]["name"]]

    # ── what is asked of it ──

    def apply_once(self, objects):
        """Everything that a cluster is, in one file, by one kubectl apply."""
        manifest = self.rack.work / "cluster.json"
        manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=1))
        said = self.slipway.kubectl("apply", "-f", manifest)
        say(f"$ kubectl apply -f {manifest.name}\n{said}")

    def upgrade(self, release):
        """The one change that begins an upgrade."""
        patch = {"spec": {"providerSpec": {"value": {"release": release}}}}
        said = self.slipway.kubectl("patch", "clusters.cluster.k8s.io", CLUSTER, "--type", "merge", "-p", json.dumps(patch))
        say(f"$ kubectl patch clusters.cluster.k8s.io {CLUSTER} …\n{said}")

    def check_agent(self, machine):
        """The agent is there as user data and its checksum say, is a service, and says what it did."""
        node = self.node_of(machine)
        config = json.loads(node.run("cat", "/etc/slipway/node.json"))
        assert (config["name"], config["namespace"]) == (machine, "default"), config
        for path in ("/etc/slipway/node.json", "/etc/slipway/node.token"):
            assert node.run("stat", "-c", "%U %a", path).strip() == "root 600", f"{path} may be read by others"
        assert node.run("systemctl", "is-active", "slipway-node").strip() == "active"
        wanted = hashlib.sha256(self.slipway.program.read_bytes()).hexdigest()
        assert node.run("sha256sum", "/usr/local/lib/slipway/slipway").split()[0] == wanted, "another program runs there"
        assert self.key in node.run("cat", "/root/.ssh/authorized_keys"), "the key of the PublicKey does not open the node"
        said = node.run("/usr/local/lib/slipway/slipway", "node", "status", "--config", "/etc/slipway/node.json")
        assert re.search(r"\b(\d+) of \1 done", said), said
        memory = node.run("sh", "-c", "grep -E 'VmRSS|RssAnon' /proc/$(systemctl show -P MainPID slipway-node)/status")
        say(f"{machine}: the agent runs: {short(memory)}")

    def check_order(self, release):
        """No worker was told of a release before the manager ran it."""
        told = [(name, state) for name, state, to_run, runs in self.told if to_run == release or runs == release]
        ran = next((index for index, one in enumerate(self.told) if one[0] == MANAGER and one[1] == "Ready" and one[3] == release), None)
        begun = next((index for index, one in enumerate(self.told) if one[0] in WORKERS and one[1] in ("Upgrade", "Deploy") and one[2] == release), None)
        assert ran is not None, f"{MANAGER} was never seen to run {release}: {told}"
        assert begun is None or ran < begun, f"a worker began before {MANAGER} was there: {told}"

    def deploys(self, machine):
        """The release and role of each deploy step that a machine's node did, for plain releases."""
        return self.node_of(machine).run("cat", f"{DONE}/deploys").split("\n")[:-1]

    def check_first(self, names):
        """Every node did the first plain release's steps, once and in its role."""
        address = self.node_of(MANAGER).address()
        for name in names:
            self.check_agent(name)
            role = "first" if name == MANAGER else "worker"
            assert self.deploys(name) == [f"{role} demo-1-0-0 {address}"], self.deploys(name)
            status = self.slipway.get("lcmmachine", name)["status"]["stateItemStatuses"]
            assert status["deploy"]["result"] == {"version": "1.0.0"}, status
            assert self.node_of(name).run("cat", f"{DONE}/labels").strip() == "team=a"
        own = self.node_of(MANAGER).run("cat", OWN)
        assert own == "mineran\n", f"the user's own user data was not carried out beside the agent's: {own!r}"

    def upgrade_plain(self, names, deadline):
        """Every node gets the second plain release, the manager first, and is not installed anew."""
        began = time.monotonic()
        available = self.cluster()["status"]["providerStatus"]["releaseRefs"]["available"]
        assert [one["name"] for one in available] == ["demo-1-1-0"], available
        before = {name: self.node_of(name).run("cat", "/etc/machine-id") for name in names}
        self.upgrade("demo-1-1-0")
        self.wait("a cluster of release two", lambda: self.is_ready("demo-1-1-0", names), deadline)
        say(f"Ready on release two {time.monotonic() - began:.0f} s after the patch")
        self.check_order("demo-1-1-0")
        for name in names:
            assert [line.split()[1] for line in self.deploys(name)] == ["demo-1-0-0", "demo-1-1-0"], self.deploys(name)
            assert self.node_of(name).run("cat", "/etc/machine-id") == before[name], f"{name} was installed anew"

    def delete_machine(self, machine):
        """A Machine goes, and all that is its own; its host is available again."""
        host = self.host_of(machine)["metadata"]["name"]
        began = time.monotonic()
        self.slipway.kubectl("delete", "machines.cluster.k8s.io", machine, "--wait=false")
        self.wait(f"{machine} to go", lambda: not self.slipway.get("machines.cluster.k8s.io", machine) or short_why(self, machine), 600)
        for kind, name in (("lcmmachines", machine), ("serviceaccount", f"lcm-{machine}"), ("role", f"lcm-{machine}"),
                           ("secret", f"{machine}-lcm-user-data"), ("secret", f"{machine}-deployment")):
            self.wait(f"{kind} {name} to go", lambda: not self.slipway.get(kind, name), 60)
        self.wait(f"{host} to be available", lambda: self.state(host) == "available" or "…" + self.state(host), 240)
        assert host not in self.systems.follow(), f"the system of {host} is still there"
        say(f"{machine} is gone and {host} available {time.monotonic() - began:.0f} s after the order")

    def state(self, host):
        return self.slipway.get("bmh", host).get("status", {}).get("provisioning", {}).get("state", "")

    def delete_cluster(self, names):
        """The cluster goes with its Machines; what is the user's stays."""
        began = time.monotonic()
        self.slipway.kubectl("delete", "clusters.cluster.k8s.io", CLUSTER, "--wait=false")
        self.slipway.kubectl("delete", "machines.cluster.k8s.io", *names, "--wait=false")
        self.wait("the cluster to go", lambda: not self.cluster(), 600)
        self.wait("the hosts", lambda: all(self.state(host["metadata"]["name"]) == "available" for host in self.slipway.list("bmh")), 300)
        for kind in ("machines.cluster.k8s.io", "lcmmachines", "lcmclusters", "helmbundles", "roles", "rolebindings", "serviceaccounts"):
            left = [item["metadata"]["name"] for item in self.slipway.list(kind)]
            assert not [name for name in left if CLUSTER in name], f"there are {kind} yet: {left}"
        assert not self.systems.follow(), "a system runs yet"
        assert [item["metadata"]["name"] for item in self.slipway.list("publickeys")] == ["ops-key"], "the user's key is gone"
        say(f"{CLUSTER} is gone {time.monotonic() - began:.0f} s after the order")


def trouble(status):
    """In one line why a node is not ready."""
    found = [f"{one['type']}: {one.get('message') or one.get('reason')}" for one in status.get("conditions", []) if one.get("status") == "False"]
    steps = [f"{name} {step.get('exitCode')}: {(step.get('message') or '').strip()[-300:]}"
             for name, step in status.get("stateItemStatuses", {}).items() if step.get("exitCode") not in (None, 0)]
    return short("; ".join(found + steps) or "nothing is said", 900)


def short_why(site, machine):
    noted = (site.slipway.get("machines.cluster.k8s.io", machine) or {}).get("status", {})
    return "…" + short([one for one in noted.get("conditions", []) if one.get("status") == "False"], 600)


# ── objects ──

def objects_of_cluster(release, labels=None, workers=WORKERS, key=KEY):
    """What one apply makes a cluster of: a key, the cluster, a manager and its workers, in no good order."""
    api, provider = "cluster.k8s.io/v1alpha1", "baremetal.k8s.io/v1alpha1"

    def machine(name, of_control):
        own = {"userData": {"name": "own-user-data"}} if name == MANAGER else {}
        labelled = {"nodeLabels": [{"key": key, "value": value} for key, value in (labels or {}).items()]} if labels else {}
        marks = {"cluster.sigs.k8s.io/cluster-name": CLUSTER, "kaas.mirantis.com/provider": "baremetal"}
        return {"apiVersion": api, "kind": "Machine",
                "metadata": {"name": name, "namespace": "default",
                             "labels": marks | ({"cluster.sigs.k8s.io/control-plane": "true"} if of_control else {})},
                "spec": {"providerSpec": {"value": {"apiVersion": provider, "kind": "BareMetalMachineProviderSpec"} | own | labelled}}}
    return [
        *(machine(name, False) for name in workers), machine(MANAGER, True),
        {"apiVersion": api, "kind": "Cluster",
         "metadata": {"name": CLUSTER, "namespace": "default", "labels": {"kaas.mirantis.com/provider": "baremetal"}},
         "spec": {"clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/16"]}, "pods": {"cidrBlocks": ["10.244.0.0/16"]}},
                  "providerSpec": {"value": {"apiVersion": provider, "kind": "BaremetalClusterProviderSpec", "release": release,
                                             "publicKeys": [{"name": "ops-key"}], "loadBalancerHost": ENDPOINT}}}},
        {"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "PublicKey", "metadata": {"name": "ops-key", "namespace": "default"},
         "spec": {"publicKey": key}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own-user-data", "namespace": "default"},
         "stringData": {"userData": f"#cloud-config\nwrite_files: [{{path: {OWN}, content: mine}}]\nruncmd: [[sh, -c, 'echo ran >> {OWN}']]\n"}},
    ]


def channel(folder, kaas, *clusters):
    """Writes releases as a channel: a folder with an index that has their checksums."""
    index = {"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "Index", "kaasReleases": [], "clusterReleases": []}
    for part, items in (("kaasReleases", [kaas]), ("clusterReleases", clusters)):
        for item in items:
            name = f"{item['metadata']['name']}.yaml"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(item, indent=1))
            index[part].append({"version": item["spec"]["version"], "path": name, "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest()})
    (folder / "index.yaml").write_text(json.dumps(index, indent=1))
    return folder


def plain_release(version, address):
    """A ClusterRelease whose steps fetch a file, and note who does them and with what."""
    bash = lambda name, phase, script, **more: {"name": name, "runner": "bash", "phase": phase, "version": version,
                                                "params": {"script": script, **more}}
    note = f'mkdir -p {DONE}; echo "$nodeRole $target_release $controlNodeIP" >> {DONE}/deploys; test "$(cat /opt/greeting)" = "{GREETING.decode().strip()}"; ' \
           f'echo "{{\\"version\\": \\"{version}\\"}}" > "$SLIPWAY_RESULT"'
    steps = [
        {"name": "greeting", "runner": "downloader", "phase": "prepare", "version": version,
         "params": {"url": f"http://{address}/packages/greetings/greeting", "path": "/opt/greeting", "sha256": hashlib.sha256(GREETING).hexdigest()}},
        bash("deploy", "deploy", note),
        bash("labels", "reconfigure", f'mkdir -p {DONE}; echo "$nodeLabels" > {DONE}/labels', nodeLabels=""),
    ]
    return {"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "ClusterRelease", "metadata": {"name": f"demo-{version.replace('.', '-')}"},
            "spec": {"version": version, "lcmType": "byo", "machineTypes": {"control": steps, "worker": steps},
                     "allowedDistributions": [{"id": "debian/12", "version": "12", "default": True, "image": {"url": "slipway://debian-12"}}],
                     "allowedNodeLabels": [{"key": "team", "value": "a"}]}}


def plain_releases(site):
    """Two releases without Kubernetes, the second of which may follow the first, imported and in force."""
    files = site.rack.work / "greetings"
    files.mkdir()
    (files / "greeting").write_bytes(GREETING)
    site.publish("greetings", files)
    one, two = (plain_release(version, isolation.ADDRESS) for version in ("1.0.0", "1.1.0"))
    kaas = {"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "KaaSRelease", "metadata": {"name": "site-1"}, "spec": {
        "version": "1.0.0", "supportedClusterReleases": [
            {"name": "demo-1-0-0", "version": "1.0.0", "availableUpgrades": [{"version": "1.1.0"}]}, {"name": "demo-1-1-0", "version": "1.1.0"}]}}
    site.run("release", "import", channel(site.rack.work / "channel", kaas, one, two))
    site.run("release", "activate", "site-1")
