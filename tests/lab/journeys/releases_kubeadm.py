"""Three machines that are off become a Kubernetes cluster of one of Slipway's own releases by one apply, go to the next Kubernetes by one
patch, and one leaves.

The releases are those of `config/releases`, unchanged; kubeadm, kubelet, containerd, etcd and all else of both versions of Kubernetes are
real. So are agents, their user data, cloud-init, systemd, kubectl, and the helm that installs the Helm controller and a chart, which come
by a third release: the second one with a chart. The machines' firmware and BMCs are simulated, and their systems are
Debians in namespaces on this machine's kernel, in whose image containerd, CNI and keepalived are already: `debs/` of the packages is empty.
"""

import copy
import hashlib
import json
import time

import isolation
import node_image
import oci
import programs
from lab import TOP, check_output, prepared, say
from release_site import AFTER, BEFORE, ENDPOINT, MANAGER, NAMES, WORKERS, ReleaseSite, channel, objects_of_cluster

DEADLINE = 2700
LABEL, GIVEN = "example.org/role", "storage"
WITH_CHART, WITH_CHART_VERSION = "with-a-chart", f"{AFTER}+chart"
TEMPLATE = """apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: {{ .Values.image }}}]}
"""


def machines():
    return []


def name_of(version):
    return f"kubernetes-{version.replace('.', '-')}"


def packages(site, version):
    """What the release's first step fetches: Kubernetes' programs, with their checksums."""
    folder = site.rack.work / f"node-packages-{version}"
    (folder / "bin").mkdir(parents=True)
    lines = []
    for name, path in programs.programs(*node_image.PROGRAMS, version=version).items():
        node_image.place(path, folder / "bin" / name)
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  bin/{name}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))
    site.publish(folder.name, folder)


def run(rack):
    with ReleaseSite(rack) as site:
        site.start()
        for version in (BEFORE, AFTER):
            packages(site, version)
        # The images of both versions: some are the same.
        for name, archive in (oci.archives(BEFORE) | oci.archives(AFTER)).items():
            site.run("image", "import", name.rpartition("/")[2].replace(":", "-").lower(), archive, "--format", "oci", "--publish")
        site.run("release", "import", TOP / "config/releases")
        site.run("release", "activate", "slipway-1-0-0")
        charts(site)
        print(site.run("release", "list"), flush=True)
        site.add_machines()
        everything(Kubernetes(site))


def charts(site):
    """The Helm controller's image, a repository with a chart, and a release that has it; the KaaSRelease that allows it is active."""
    helm, image = programs.program("helm"), site.rack.work / "helm-controller.tar"
    site.run("helm-controller", "image", "--helm", helm, "--out", image, deadline=600)
    site.run("image", "import", "helm-controller", image, "--format", "oci", "--publish", deadline=300)
    source, packed = site.rack.work / "web", site.rack.work / "charts"
    node_image.write_files(source, {"Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n", "values.yaml": "image: none\n",
                                    "templates/web.yaml": TEMPLATE})
    check_output([helm, "package", source, "-d", packed])
    check_output([helm, "repo", "index", packed])
    site.publish("charts", packed)
    second = json.loads(site.slipway.kubectl("get", "clusterrelease", name_of(AFTER), "-o", "json"))
    third = {"apiVersion": second["apiVersion"], "kind": second["kind"], "metadata": {"name": WITH_CHART}, "spec": copy.deepcopy(second["spec"])}
    third["spec"]["version"] = WITH_CHART_VERSION
    third["spec"]["helm"] = {
        "repositories": [{"name": "ours", "url": f"http://{isolation.ADDRESS}/packages/charts"}],
        "releases": [{"name": "web", "namespace": "web", "chart": "ours/web", "version": "1.0.0",
                      "values": {"image": f"registry.k8s.io/pause:{programs.PAUSE}"}}]}
    kaas = json.loads(site.slipway.kubectl("get", "kaasrelease", "slipway-1-0-0", "-o", "json"))
    supported = copy.deepcopy(kaas["spec"]["supportedClusterReleases"])
    for one in supported:
        if one["name"] == name_of(AFTER):
            one["availableUpgrades"] = [{"version": WITH_CHART_VERSION}]
    supported.append({"name": WITH_CHART, "version": WITH_CHART_VERSION, "providers": {"supported": ["baremetal"]}})
    wider = {"apiVersion": kaas["apiVersion"], "kind": kaas["kind"], "metadata": {"name": "slipway-1-1-0"},
             "spec": {"version": "1.1.0", "supportedClusterReleases": supported}}
    site.run("release", "import", channel(site.rack.work / "channel", wider, third))
    site.run("release", "activate", "slipway-1-1-0")


class Kubernetes:
    """The cluster, through the kubeconfig that the appliance made for it."""

    def __init__(self, site):
        self.site, self.kubeconfig = site, site.rack.work / "edge.kubeconfig"

    def kubectl(self, *arguments):
        self.kubeconfig.write_text(self.site.run("kubeconfig", "--cluster", "edge"))
        return check_output([prepared("KUBECTL"), "--kubeconfig", self.kubeconfig, "--request-timeout", "20s", *arguments])

    def list(self, kind):
        return json.loads(self.kubectl("get", kind, "-A", "-o", "json"))["items"]

    def node_names(self):
        """The cluster's name for each machine's node: that of its host."""
        return {machine: self.site.host_of(machine)["metadata"]["name"] for machine in NAMES}

    def nodes_are(self, version, count):
        """Whether the cluster has so many nodes, all ready, of one version; if not, what they are."""
        said = {node["metadata"]["name"]: (node["status"]["nodeInfo"]["kubeletVersion"], condition(node, "Ready")) for node in self.list("nodes")}
        return (len(said) == count and all(is_so == (f"v{version}", "True") for is_so in said.values())) or f"…{said}"

    def pods_ready(self):
        """Whether every pod is ready; if not, what they say."""
        rest = [f"{pod['metadata']['name']} {pod['status']['phase']}" for pod in self.list("pods") if condition(pod, "Ready") != "True"]
        return not rest or "…" + ", ".join(rest)


def condition(item, name):
    return next((one["status"] for one in item.get("status", {}).get("conditions", []) if one["type"] == name), None)


def stands(cluster, version, count):
    cluster.site.wait(f"{count} nodes of {version}", lambda: cluster.nodes_are(version, count), 120)
    cluster.site.wait("every pod to be ready", cluster.pods_ready, 300)


def everything(cluster):
    site = cluster.site
    began = time.monotonic()
    site.apply_once(objects_of_cluster(name_of(BEFORE), {LABEL: GIVEN}))
    site.wait("a host to have its system", site.has_system, 120)
    site.kill()
    site.wait(f"a cluster of Kubernetes {BEFORE}", lambda: site.is_ready(name_of(BEFORE)), 900)
    say(f"Ready on {name_of(BEFORE)} {time.monotonic() - began:.0f} s after the objects")
    stands(cluster, BEFORE, len(NAMES))
    for name in NAMES:
        site.check_agent(name)
    before = {node["metadata"]["name"]: node for node in cluster.list("nodes")}
    assert all(node["metadata"]["labels"].get(LABEL) == GIVEN for node in before.values()), "a node has not its label"
    manager = before[cluster.node_names()[MANAGER]]
    assert "node-role.kubernetes.io/control-plane" in manager["metadata"]["labels"], manager["metadata"]["labels"]
    assert f" {ENDPOINT}/" in site.node_of(MANAGER).run("ip", "-4", "address", "show", "dev", "eth0"), "nobody holds the endpoint's address"
    print(cluster.kubectl("get", "nodes", "-o", "wide"), flush=True)

    began = time.monotonic()
    site.upgrade(name_of(AFTER))
    site.wait(f"a cluster of Kubernetes {AFTER}", lambda: site.is_ready(name_of(AFTER)), 1200)
    say(f"Ready on {name_of(AFTER)} {time.monotonic() - began:.0f} s after the patch")
    stands(cluster, AFTER, len(NAMES))
    site.check_order(name_of(AFTER))
    after = {node["metadata"]["name"]: node for node in cluster.list("nodes")}
    for name, node in after.items():
        assert node["metadata"]["uid"] == before[name]["metadata"]["uid"], f"{name} was made anew"
        assert not node["spec"].get("unschedulable"), f"{name} is still cordoned"
        assert node["metadata"]["labels"].get(LABEL) == GIVEN, f"{name} has lost its label"
    print(cluster.kubectl("get", "nodes", "-o", "wide"), flush=True)
    print(site.slipway.kubectl("get", "lcmmachines,lcmclusters,clusters.cluster.k8s.io,machines.cluster.k8s.io,bmh"), flush=True)

    began = time.monotonic()
    site.upgrade(WITH_CHART)
    site.wait("the Helm controller and the chart", lambda: site.is_ready(WITH_CHART), 900)
    say(f"Ready with a chart {time.monotonic() - began:.0f} s after the patch")
    said = site.slipway.get("lcmcluster", "edge")["status"]
    assert said["helmControllerDeployed"] is True, said
    web = json.loads(cluster.kubectl("get", "deployment", "web", "-n", "web", "-o", "json"))
    assert web["status"]["availableReplicas"] == 1, web["status"]
    print(cluster.kubectl("get", "pods,jobs", "-A"), flush=True)
    print(site.slipway.kubectl("get", "helmbundle", "edge", "-o", "yaml"), flush=True)

    gone = cluster.node_names()[WORKERS[1]]
    site.delete_machine(WORKERS[1])
    assert gone not in [node["metadata"]["name"] for node in cluster.list("nodes")], f"{gone} is still a node"
    site.wait("the rest of the cluster", lambda: site.is_ready(WITH_CHART, NAMES[:2]), 300)
    site.delete_cluster(NAMES[:2])
