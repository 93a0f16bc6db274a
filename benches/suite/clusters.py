"""Clusters of five simulated machines each, made, upgraded and deleted: by Slipway's own controllers, and by upstream's managers.

Hosts are those of `slipway simulate`. A machine whose image is written counts as a node at once, and the API servers of all clusters
are one process (`workload.py`); etcd is one that the clusters' users have elsewhere, so nobody asks its members.
"""

import base64
import json
import os
import re
import shutil
import sys
import threading
import time
from http.client import HTTPException
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/api"))

from figures import Figure
from managers import ADDRESSES, AFTER, BEFORE, BOOTSTRAP, CORE, INFRASTRUCTURE, PLANE, Rack, metadata, reference, released, used
from servers import Client
from wait import LabError, check_output, wait_for
from workload import PORT, Servers

# The fewest are made by upstream's managers, too.
SIZES = (10, 100)
PLANES, WORKERS = 3, 2
GOAL_MB = 200
# What the appliance may take for a cluster among many, of what it takes for one among few.
GROWTH = 1.1
# What the built-in controllers may take of what upstream's managers take.
SHARE = 1 / 5
# How often the objects are looked at, in seconds.
EVERY = 1.0
SYSTEM = "kube-system"
PLANE_PODS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
CONFIGURATION = """apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {version}
etcd:
  external:
    endpoints: ["https://127.0.0.1:2379"]
    caFile: /etc/kubernetes/pki/etcd/ca.crt
    certFile: /etc/kubernetes/pki/apiserver-etcd-client.crt
    keyFile: /etc/kubernetes/pki/apiserver-etcd-client.key
"""


def names(count):
    return [f"bench-{number:03}" for number in range(1, count + 1)]


def address(number):
    return f"127.70.{number // 200}.{number % 200 + 1}"


# ── what is asked for ──


def machine_template(rack, pool, version):
    return {"apiVersion": f"{INFRASTRUCTURE}/v1beta2", "kind": "Metal3MachineTemplate", "metadata": metadata(f"{pool}-{version.replace('.', '-')}"),
            "spec": {"template": {"spec": {"automatedCleaningMode": "metadata", "dataTemplate": {"name": pool}, "image": rack.image(version)}}}}


def objects(rack, name, number, etcd):
    """The manifest of a cluster."""
    plane, workers = f"{name}-plane", f"{name}-workers"
    registration = {"nodeRegistration": {"name": "{{ ds.meta_data.name }}", "kubeletExtraArgs": [
        {"name": "node-labels", "value": "metal3.io/uuid={{ ds.meta_data.uuid }}"}]}}
    labels = {f"{CORE}/cluster-name": name, "nodepool": "nodepool-0"}
    data = {"metaData": {"objectNames": [{"key": key, "object": "machine"} for key in ("name", "local-hostname")],
                         "ipAddressesFromPool": [{"key": "address", "name": name}]}}
    template = lambda pool: reference(INFRASTRUCTURE, "Metal3MachineTemplate", f"{pool}-{BEFORE.replace('.', '-')}")
    # A machine goes before its successor comes: there is no host too many.
    rollout = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}}}
    pki = "/etc/kubernetes/pki"
    external = {"endpoints": ["https://127.0.0.1:2379"], "caFile": f"{pki}/etcd/ca.crt", "certFile": f"{pki}/apiserver-etcd-client.crt",
                "keyFile": f"{pki}/apiserver-etcd-client.key"}
    return [
        *({"apiVersion": "v1", "kind": "Secret", "type": f"{CORE}/secret", "metadata": metadata(f"{name}-{end}", labels={f"{CORE}/cluster-name": name}),
           "data": etcd} for end in ("etcd", "apiserver-etcd-client")),
        {"apiVersion": f"{ADDRESSES}/v1alpha1", "kind": "IPPool", "metadata": metadata(name),
         "spec": {"clusterName": name, "namePrefix": name, "prefix": 24, "gateway": "192.0.2.1", "pools": [{"start": "192.0.2.10", "end": "192.0.2.99"}]}},
        *({"apiVersion": f"{INFRASTRUCTURE}/v1beta2", "kind": "Metal3DataTemplate", "metadata": metadata(pool),
           "spec": {"clusterName": name} | data} for pool in (plane, workers)),
        *(machine_template(rack, pool, BEFORE) for pool in (plane, workers)),
        {"apiVersion": f"{BOOTSTRAP}/v1beta2", "kind": "KubeadmConfigTemplate", "metadata": metadata(workers),
         "spec": {"template": {"spec": {"joinConfiguration": registration}}}},
        {"apiVersion": f"{INFRASTRUCTURE}/v1beta2", "kind": "Metal3Cluster", "metadata": metadata(name),
         "spec": {"controlPlaneEndpoint": {"host": address(number), "port": PORT}, "cloudProviderEnabled": False}},
        {"apiVersion": f"{PLANE}/v1beta2", "kind": "KubeadmControlPlane", "metadata": metadata(plane), "spec": {
            "replicas": PLANES, "version": BEFORE, "rollout": rollout,
            # Nobody looks at the certificate of a machine's API server through a tunnel, for which the stand-in has no other end.
            "machineTemplate": {"metadata": {"annotations": {f"machine.{CORE}/certificates-expiry": "2100-01-01T00:00:00Z"}},
                                "spec": {"infrastructureRef": template(plane)}},
            "kubeadmConfigSpec": {"clusterConfiguration": {"etcd": {"external": external}}, "initConfiguration": registration,
                                  "joinConfiguration": registration}}},
        {"apiVersion": f"{CORE}/v1beta2", "kind": "MachineDeployment", "metadata": metadata(workers, labels=labels), "spec": {
            "clusterName": name, "replicas": WORKERS, "selector": {"matchLabels": labels},
            "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
            "template": {"metadata": {"labels": labels}, "spec": {
                "clusterName": name, "version": BEFORE, "bootstrap": {"configRef": reference(BOOTSTRAP, "KubeadmConfigTemplate", workers)},
                "infrastructureRef": template(workers)}}}},
        {"apiVersion": f"{CORE}/v1beta2", "kind": "Cluster", "metadata": metadata(name), "spec": {
            "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/12"]}, "pods": {"cidrBlocks": ["192.168.0.0/18"]}, "serviceDomain": "cluster.local"},
            "infrastructureRef": reference(INFRASTRUCTURE, "Metal3Cluster", name), "controlPlaneRef": reference(PLANE, "KubeadmControlPlane", plane)}},
    ]


def authority(folder):
    """The authority of an etcd, which serves as its clients' certificate, too: nobody connects."""
    check_output(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
                  "-keyout", "etcd.key", "-out", "etcd.crt", "-subj", "/CN=etcd", "-addext", "extendedKeyUsage=clientAuth"], deadline=60, cwd=folder)
    return {f"tls.{end}": base64.b64encode((folder / f"etcd.{end}").read_bytes()).decode() for end in ("crt", "key")}


# ── machines as nodes ──


def conditions(ready):
    """What a kubelet says of its node, or, as Unknown, who misses it."""
    said = {"Ready": ready} | dict.fromkeys(("MemoryPressure", "DiskPressure", "PIDPressure"), "False" if ready == "True" else "Unknown")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return [{"type": name, "status": status, "lastTransitionTime": now, "reason": "Played", "message": "played"} for name, status in said.items()]


class Nodes:
    """Follows the hosts, and has those with an image become nodes of their clusters."""

    def __init__(self, rack, servers, workloads):
        self.rack, self.servers, self.workloads = rack, servers, workloads
        # One connection is busy with its watch.
        self.client, self.secrets = Client(rack.kubeconfig), Client(rack.kubeconfig)
        self.known, self.fault, self.stopped = {}, None, False
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while not self.stopped:
            try:
                self.follow()
            except (OSError, HTTPException, ValueError):
                # A watch has an end; the list begins anew.
                self.client.connection = None
            except LabError as error:
                self.fault = error
                return

    def follow(self):
        path = self.rack.path("baremetalhosts")
        listed = self.client.json("GET", path)
        for host in listed["items"]:
            self.see(host)
        self.client.connection.request("GET", f"{path}?watch=true&resourceVersion={listed['metadata']['resourceVersion']}", None, self.client.headers)
        answer = self.client.connection.getresponse()
        while line := answer.readline():
            event = json.loads(line)
            if event["type"] == "ERROR":
                break
            self.see(event["object"])
        self.client.connection.close()
        self.client.connection = None

    def see(self, host):
        about, spec, state = host["metadata"], host["spec"], host.get("status", {}).get("provisioning", {})
        now = None
        if state.get("state") == "provisioned" and spec.get("consumerRef"):
            version = re.search(r"node-(v[\d.]+)\.raw", state["image"]["url"])[1]
            now = (about["labels"][f"{CORE}/cluster-name"], spec["consumerRef"]["name"], version, about["uid"])
        before = self.known.get(about["name"])
        if before == now:
            return
        self.known[about["name"]] = now
        if before:
            self.go(*before)
        if now:
            self.come(*now)

    def come(self, cluster, node, version, uid):
        """kubeadm and the kubelet."""
        workload = self.workloads[cluster]
        plane = node.startswith(f"{cluster}-plane-")
        labels = {"kubernetes.io/hostname": node, "metal3.io/uuid": uid}
        if plane:
            labels["node-role.kubernetes.io/control-plane"] = ""
        taints = [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}] if plane else []
        workload.put(("api/v1", "nodes", None, node), {
            "metadata": {"name": node, "labels": labels}, "spec": {"taints": taints}, "status": {
                "conditions": conditions("True"),
                "nodeInfo": dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeProxyVersion",
                                           "operatingSystem", "architecture"), "played") | {"kubeletVersion": version},
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": node}]}})
        if not plane:
            return
        for component in PLANE_PODS:
            image = f"registry.k8s.io/{component}:{version}"
            workload.put(("api/v1", "pods", SYSTEM, f"{component}-{node}"), {
                "metadata": {"name": f"{component}-{node}", "namespace": SYSTEM, "labels": {"component": component, "tier": "control-plane"},
                             "annotations": {"kubernetes.io/config.mirror": "played"}},
                "spec": {"nodeName": node, "hostNetwork": True, "containers": [{"name": component, "image": image}]},
                "status": {"phase": "Running", "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")],
                           "containerStatuses": [{"name": component, "image": image, "imageID": image, "ready": True, "restartCount": 0,
                                                  "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}})
        if workload.context is None:
            self.begin(workload, cluster, version)
        workload.planes.add(node)

    def begin(self, workload, cluster, version):
        """What kubeadm leaves where it begins a cluster."""
        for name, data in (("kubeadm-config", {"ClusterConfiguration": CONFIGURATION.format(version=version)}),
                           ("coredns", {"Corefile": ".:53 {\n    ready\n    kubernetes cluster.local\n}\n"})):
            workload.put(("api/v1", "configmaps", SYSTEM, name), {"metadata": {"name": name, "namespace": SYSTEM}, "data": data})
        for plural, name, image in (("daemonsets", "kube-proxy", f"kube-proxy:{version}"), ("deployments", "coredns", "coredns/coredns:v1.12.1")):
            labels = {"k8s-app": name}
            workload.put(("apis/apps/v1", plural, SYSTEM, name), {"metadata": {"name": name, "namespace": SYSTEM, "labels": labels}, "spec": {
                "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
                    "containers": [{"name": name, "image": f"registry.k8s.io/{image}"}]}}}})
        workload.put(("api/v1", "namespaces", None, SYSTEM), {"metadata": {"name": SYSTEM}})
        where = next(where for where, one in self.servers.workloads.items() if one is workload)
        self.servers.certify(workload, where, self.secrets.json("GET", self.rack.path("secrets", f"{cluster}-ca")))

    def go(self, cluster, node, _version, _uid):
        workload = self.workloads[cluster]
        for component in PLANE_PODS:
            workload.remove(("api/v1", "pods", SYSTEM, f"{component}-{node}"))
        found = workload.objects.get(("api/v1", "nodes", None, node))
        if found:
            workload.put(("api/v1", "nodes", None, node), found | {"status": found["status"] | {"conditions": conditions("Unknown")}})
        workload.planes.discard(node)


# ── a run ──


def ready(rack, count, version):
    """Whether all clusters are as they are to be."""
    reasons = []
    for plural in ("kubeadmcontrolplanes", "machinedeployments"):
        good = 0
        for item in rack.list(plural):
            spec, status = item["spec"], item.get("status", {})
            wanted = spec["version"] if plural == "kubeadmcontrolplanes" else spec["template"]["spec"]["version"]
            numbers = [status.get(word) for word in ("replicas", "upToDateReplicas", "availableReplicas", "readyReplicas")]
            good += wanted == version and set(numbers) == {spec["replicas"]} and status.get("observedGeneration") == item["metadata"]["generation"]
        reasons.append(f"{good} {plural}")
        if good != count:
            return "…" + ", ".join(reasons)
    good = sum(one["status"] == "True" for item in rack.list("clusters") for one in item.get("status", {}).get("conditions", [])
               if one["type"] == "Available")
    return good == count or f"…{good} clusters are available"


class Run:
    """A life of so many clusters, by upstream's managers where there are some."""

    def __init__(self, part, folder, count, found=None):
        self.part, self.folder, self.count, self.found = part, folder, count, found
        self.took, self.cost, self.peak = {}, {}, {}

    def until(self, what, check):
        def checked():
            if self.nodes.fault:
                raise self.nodes.fault
            for name, process in self.rack.processes.items():
                if process.poll() is not None:
                    raise LabError(f"{name} ended with {process.returncode}")
            return check()
        began = time.monotonic()
        wait_for(f"{self.count} clusters: {what}", checked, max(self.part.left(), 1), every=EVERY)
        self.took[what] = time.monotonic() - began

    def use(self):
        """Processor time and most memory by process."""
        return {"slipway": used(self.rack.process())} | {one.name: used(self.rack.processes[one.name].pid) for one in self.rack.managers}

    def live(self):
        upstream = released(self.found) if self.found else []
        hosts = self.count * (PLANES + WORKERS)
        servers = Servers(self.folder)
        workloads = {name: servers.place(name, address(number)) for number, name in enumerate(names(self.count))}
        try:
            with Rack(self.folder / "rack", upstream, machines=hosts, clusters="127.70.0.0/16", host=f'busy_limit = {hosts}\nretry = "1s"\n') as rack:
                self.rack, self.nodes = rack, Nodes(rack, servers, workloads)
                if upstream:
                    rack.have_act(self.found)
                before = self.use()
                self.stages(rack, hosts)
                after = self.use()
                self.nodes.stopped = True
            self.cost = {name: after[name][0] - before[name][0] for name in after}
            self.peak = {name: after[name][1] for name in after}
        finally:
            servers.stop()
            for key, number in sorted(servers.requests.items(), key=lambda pair: -pair[1])[:40]:
                print(f"   {number:7} {key}", flush=True)
        return self

    def stages(self, rack, hosts):
        etcd = authority(self.folder)
        began = time.monotonic()
        for number, name in enumerate(names(self.count)):
            rack.apply(*objects(rack, name, number, etcd))
        self.until("create", lambda: ready(rack, self.count, BEFORE))
        self.took["create"] = time.monotonic() - began
        began = time.monotonic()
        for name in names(self.count):
            plane, workers = f"{name}-plane", f"{name}-workers"
            rack.apply(*(machine_template(rack, pool, AFTER) for pool in (plane, workers)))
            template = lambda pool: {"infrastructureRef": {"name": f"{pool}-{AFTER.replace('.', '-')}"}}
            rack.merge("kubeadmcontrolplanes", plane, {"spec": {"version": AFTER, "machineTemplate": {"spec": template(plane)}}})
            rack.merge("machinedeployments", workers, {"spec": {"template": {"spec": {"version": AFTER} | template(workers)}}})
        self.until("upgrade", lambda: ready(rack, self.count, AFTER))
        self.took["upgrade"] = time.monotonic() - began
        began = time.monotonic()
        for name in names(self.count):
            rack.client().json("DELETE", rack.path("clusters", name))
        self.until("delete", lambda: (not (left := rack.list("clusters")) or f"…{len(left)} are left") and rack.available())
        self.took["delete"] = time.monotonic() - began

    def words(self):
        return ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in self.took.items())


def fresh(results, name):
    folder = results / "clusters" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def run(part, results):
    found = json.loads(os.environ["SLIPWAY_BENCH_MANAGERS"])
    # Other sizes, for a quick look.
    sizes = [int(word) for word in os.environ.get("SLIPWAY_BENCH_CLUSTERS", "").split()] or SIZES
    each = {}
    for count in sizes:
        done = Run(part, fresh(results, f"built-in-{count}"), count).live()
        cost, memory = done.cost["slipway"], done.peak["slipway"]
        each[count] = cost / count
        largest = count == max(SIZES)
        part.add(Figure(f"{count} clusters of {PLANES + WORKERS} machines, made, upgraded and deleted",
                        f"{GOAL_MB} MB" if largest else "", f"{memory:.0f} MB", "", memory <= GOAL_MB if largest else None,
                        f"highest VmRSS of the appliance; {done.words()}; its processor time {cost:.1f} s, {1000 * each[count]:.0f} ms a cluster"))
        if count == sizes[0] and found["programs"]:
            compare(part, done, Run(part, fresh(results, "upstream"), count, found).live())
    if len(each) > 1:
        few, many = min(each), max(each)
        part.add(Figure(f"processor time for a cluster among {many}", f"as among {few}", f"{1000 * each[many]:.0f} ms", "",
                        each[many] <= GROWTH * each[few], f"of the appliance, its hosts' life included; among {few} {1000 * each[few]:.0f} ms"))


def compare(part, own, theirs):
    """Slipway's own controllers beside upstream's managers."""
    theirs_cost = sum(cost for name, cost in theirs.cost.items() if name != "slipway")
    theirs_memory = sum(memory for name, memory in theirs.peak.items() if name != "slipway")
    whose = f"{len(theirs.cost) - 1} managers"
    for stage in own.took:
        part.add(Figure(f"{own.count} clusters: {stage}", "a fifth of upstream's" if stage == "create" else "", f"{own.took[stage]:.1f} s", f"{whose} {theirs.took[stage]:.1f} s",
                        own.took[stage] <= SHARE * theirs.took[stage] if stage == "create" else None,
                        "from the first request; " + {"create": "until all say that they are Available", "upgrade": "until all machines are new",
                                                      "delete": "until all hosts are available again"}[stage]))
    cost, memory = own.cost["slipway"], own.peak["slipway"]
    each = ", ".join(f"{name} {theirs.cost[name]:.1f} s" for name in theirs.cost)
    part.add(Figure(f"{own.count} clusters: processor time", "a fifth of upstream's", f"{cost:.1f} s", f"{whose} {theirs_cost:.1f} s", cost <= SHARE * theirs_cost,
                    f"the whole appliance, with API server and hosts; upstream's managers have it beside them: {each}"))
    each = ", ".join(f"{name} {theirs.peak[name]:.0f} MB" for name in theirs.peak)
    part.add(Figure(f"{own.count} clusters: memory", "a fifth of upstream's", f"{memory:.0f} MB", f"{whose} {theirs_memory:.0f} MB", memory <= SHARE * theirs_memory,
                    f"highest VmRSS of the whole appliance; upstream's managers have it beside them: {each}"))
