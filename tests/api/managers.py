"""The released managers of Cluster API and Metal3 against Slipway's API, and what they leave behind beside what Slipway's own
controllers leave.

    python3 tests/api/managers.py check            runs both, and fails on a difference that managers.toml does not have
    python3 tests/api/managers.py list             the same, and prints every difference
    python3 tests/api/managers.py run WHO [-- COMMAND ...]
                                                   runs WHO alone, `upstream` or `built-in`, and then a command with KUBECONFIG
                                                   set (a shell: -- bash)

The managers of Cluster API are built from its Go module. Those of Metal3 are run where somebody has them:

    --program cluster-api-provider-metal3=FILE --program ip-address-manager=FILE
    --git MODULE=FOLDER    a Git repository with their version, for the manifests that they are released with

Without these their groups stay with Slipway. `--stages create,scale,delete` does less than all; `--folder` keeps logs and facts there.

Machines are simulated (`slipway simulate`), their systems played (`played.py`). Everything is in a network namespace of its own,
because managers listen on every address.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter, defaultdict
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from definitions import MODULES
from played import Cluster, Server, yaml_documents
from servers import GiveUp, LabError, binary, check_output, fail, free_port, load_config, programs, say, tail, tools, wait_for

HERE = Path(__file__).resolve().parent
ACCEPTED = HERE / "managers.toml"
INSIDE = "SLIPWAY_MANAGERS_INSIDE"
NAMESPACE, NAME = "default", "demo"
BEFORE, AFTER = "v1.34.3", f"v{programs.KUBERNETES}"
MACHINES = 5
# How long nothing may change before it counts as what is left, in seconds.
QUIET = 6
METAL3 = "github.com/metal3-io"
CORE, BOOTSTRAP, PLANE = "cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"
INFRASTRUCTURE, ADDRESSES = "infrastructure.cluster.x-k8s.io", "ipam.metal3.io"
# What is looked at: plural and version by group.
KINDS = {
    (CORE, "v1beta2"): ["clusters", "machinedeployments", "machinesets", "machines", "machinehealthchecks"],
    (BOOTSTRAP, "v1beta2"): ["kubeadmconfigs", "kubeadmconfigtemplates"],
    (PLANE, "v1beta2"): ["kubeadmcontrolplanes"],
    (INFRASTRUCTURE, "v1beta2"): ["metal3clusters", "metal3machines", "metal3machinetemplates", "metal3datatemplates", "metal3dataclaims",
                                  "metal3datas", "metal3remediations", "metal3remediationtemplates"],
    (ADDRESSES, "v1alpha1"): ["ippools", "ipclaims", "ipaddresses"],
    ("metal3.io", "v1alpha1"): ["baremetalhosts"],
    ("", "v1"): ["secrets", "configmaps"],
}
PATHS = {plural: (f"/apis/{group}/{version}" if group else f"/api/{version}") for (group, version), plurals in KINDS.items() for plural in plurals}


class Manager:
    """A manager as it is released: a program, and the manifests that its Kustomize folder makes."""

    def __init__(self, name, program, module, folder):
        self.name, self.program, self.module, self.folder = name, program, module, folder
        self.webhook, self.health, self.diagnostics = free_port(), free_port(), free_port()
        # Arguments besides those of the release.
        self.documents, self.more = [], []

    def of_kind(self, *kinds):
        return [document for document in self.documents if document["kind"] in kinds]

    def deployment(self):
        return self.of_kind("Deployment")[0]

    def namespace(self):
        return self.deployment()["metadata"]["namespace"]

    def roles(self):
        return [binding["roleRef"]["name"] for binding in self.of_kind("ClusterRoleBinding")]

    def services(self):
        return [f"{service['metadata']['namespace']}/{service['metadata']['name']}" for service in self.of_kind("Service")
                if "webhook" in service["metadata"]["name"]]

    def read(self, top):
        """The manifests of the release, as its makers put them together."""
        text = check_output([kubectl(), "kustomize", Path(top, self.folder)], deadline=120)
        # What clusterctl fills in where nothing is said.
        text = re.sub(r"\$\{\w+:=([^}]*)\}", r"\1", text)
        self.documents = [document for document in yaml_documents(text)[0] if document]

    def arguments(self):
        """The arguments of the release, with ports of our own: all managers run on one machine here."""
        container = self.deployment()["spec"]["template"]["spec"]["containers"][0]
        given = [argument for argument in container["args"] if not argument.startswith(("--webhook-port", "--diagnostics-address", "--leader-elect"))]
        # One of them elects nobody, as it is released. A machine that is busy with other tests is slow for longer than the ten
        # seconds after which a leader gives up.
        elects = "leases" in json.dumps(self.of_kind("Role"))
        election = ["--leader-elect", "--leader-elect-lease-duration=90s", "--leader-elect-renew-deadline=60s"] if elects else []
        return [*given, *election, *self.more, f"--webhook-port={self.webhook}", f"--health-addr=127.0.0.1:{self.health}",
                f"--diagnostics-address=127.0.0.1:{self.diagnostics}"]

    def environment(self):
        return {key: value.strip("'") for item in self.of_kind("ConfigMap") for key, value in (item.get("data") or {}).items()}


CLUSTER_API = "sigs.k8s.io/cluster-api"
MANAGERS = [
    ("core", "cluster-api-controller", CLUSTER_API, "core/config/default", CORE),
    ("bootstrap", "kubeadm-bootstrap-controller", CLUSTER_API, "bootstrap/kubeadm/config/default", BOOTSTRAP),
    ("control-plane", "kubeadm-control-plane-controller", CLUSTER_API, "controlplane/kubeadm/config/default", PLANE),
    ("metal3", "cluster-api-provider-metal3", f"{METAL3}/cluster-api-provider-metal3", "config/default", INFRASTRUCTURE),
    ("addresses", "ip-address-manager", f"{METAL3}/ip-address-manager", "config/default", ADDRESSES),
]


def released(found):
    """The managers whose programs were found, with the manifests of their releases."""
    managers = []
    for name, program, module, path, _ in MANAGERS:
        if program in found["programs"]:
            managers.append(Manager(name, program, module, path))
            managers[-1].read(found["folders"][module])
    return managers


def kubectl():
    return tools.clients(36) / "kubectl"


# ── what is built before there is no network ──


def prepare(options):
    """What is needed, as JSON that the inside reads: programs, and the folders of their manifests."""
    given = {pair.partition("=")[0]: Path(pair.partition("=")[2]).resolve() for pair in options.program}
    names = [program for _, program, _, _, _ in MANAGERS]
    if not given.keys() <= set(names):
        raise LabError(f"--program is NAME=FILE, with one of {', '.join(names)}")
    built = {program: program for _, program, module, _, _ in MANAGERS if module == CLUSTER_API and program not in given}
    built = programs.programs("etcd", "kube-apiserver", "played-kubelet", *built)
    found = {name: str(path) for name, path in (built | given).items()}
    folders, repositories = {}, dict(pair.split("=", 1) for pair in options.git)
    versions = {module: version for module, version, _ in MODULES}
    for _, program, module, _, _ in MANAGERS:
        if program in found and module not in folders:
            folders[module] = str(manifests_of(module, versions[module], repositories, options.folder))
    tools.python_client()
    kubectl()
    return {"programs": found, "folders": folders}


def manifests_of(module, version, repositories, folder):
    """The folder of a module's files."""
    if module not in repositories:
        return programs.module(f"{module}@{version}")["Dir"]
    target = Path(folder, "manifests", module.rpartition("/")[2])
    target.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "-C", repositories[module], "archive", version, "config"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", target], input=archive, check=True)
    return target


def enter(options):
    """Runs this program again in namespaces, with which all that it starts ends. Returns what `prepare` found when it is inside."""
    if os.environ.get(INSIDE):
        check_output(["ip", "link", "set", "lo", "up"])
        return json.loads(os.environ[INSIDE])
    found = prepare(options)
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    command = ["setpriv", "--pdeathsig", "KILL", *unshare, sys.executable, *sys.argv[:1], "--folder", str(options.folder), *sys.argv[1:]]
    sys.exit(subprocess.run(command, env=os.environ | {INSIDE: json.dumps(found)}).returncode)


# ── the appliance, its machines and its managers ──


class Rack(Server):
    """Slipway and simulated machines, all of whose hosts are available; its controllers are off where managers act."""

    name = "slipway"

    def __init__(self, folder, managers, machines=MACHINES, clusters="127.0.0.1", host='power_poll = "5s"\n'):
        super().__init__(folder)
        self.managers, self.config, self.images, self.connection = managers, None, None, None
        self.machines, self.clusters, self.host = machines, clusters, host

    def start(self):
        given = self.folder / "given.toml"
        given.write_text(f'{self.tables()}[log]\nlevel = "info"\n')
        self.serve_images()
        self.spawn("machines", [binary(), "simulate", "--config", given, "--machines", self.machines, "--namespace", NAMESPACE, "--bmc", "redfish",
                               "--boot", "ipxe", "--download", "head", "--until", "available", "--stay", "--keep", "--deadline", "2h"],
                   env=os.environ | {"TMPDIR": str(self.folder)})

        def answers():
            config = next(self.folder.glob("slipway-simulate-*/slipway.toml"), None)
            if config is None:
                return False
            self.config = config
            self.kubeconfig.write_text(check_output([binary(), "kubeconfig", "--config", config], deadline=20))
            # As JSON it is read without a program.
            self.kubeconfig.write_text(json.dumps(load_config(self.kubeconfig)))
            return self.client().request("GET", "/readyz")[0] == 200
        self.ready("machines", "Slipway", answers, 120)
        self.url = self.client().url.geturl()
        self.ready("machines", f"{self.machines} available hosts", self.available, 180)

    def stop(self, hard=False):
        """The simulator takes its appliance with it only where it is interrupted."""
        process = self.processes.get("machines")
        if process and process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
        super().stop(hard)
        if self.images:
            self.images.shutdown()

    def available(self):
        states = [host.get("status", {}).get("provisioning", {}).get("state") for host in self.list("baremetalhosts")]
        return states.count("available") == self.machines or f"…{dict(Counter(states))}"

    def process(self):
        """The process of `slipway serve`, which the simulator has started."""
        children = check_output(["ps", "-o", "pid=,args=", "--ppid", self.processes["machines"].pid])
        return next(int(line.split()[0]) for line in children.splitlines() if " serve " in line)

    def serve_images(self):
        """A file for each version of Kubernetes, by HTTP."""
        images = self.folder / "images"
        images.mkdir()
        for version in (BEFORE, AFTER):
            (images / f"node-{version}.raw").write_bytes(version.encode().ljust(1 << 20, b"\0"))

        class Quiet(SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass
        self.images = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=images))
        threading.Thread(target=self.images.serve_forever, daemon=True).start()

    def image(self, version):
        text = version.encode().ljust(1 << 20, b"\0")
        return {"url": f"http://127.0.0.1:{self.images.server_port}/node-{version}.raw", "checksum": hashlib.sha256(text).hexdigest(),
                "checksumType": "sha256", "diskFormat": "raw"}

    # ── its API ──

    def client(self, identity=None, trust=None):
        """A connection that is kept."""
        self.connection = self.connection or super().client()
        return self.connection

    def path(self, plural, name=None):
        return f"{PATHS[plural]}/namespaces/{NAMESPACE}/{plural}" + (f"/{name}" if name else "")

    def list(self, plural):
        return self.client().json("GET", self.path(plural))["items"]

    def get(self, plural, name):
        return self.client().json("GET", self.path(plural, name))

    def merge(self, plural, name, patch):
        return self.client().json("PATCH", self.path(plural, name), patch, {"Content-Type": "application/merge-patch+json"})

    def apply(self, *objects):
        """Server-side apply, as `kubectl apply --server-side --force-conflicts` asks for it."""
        client = self.client()
        for item in objects:
            about, version = item["metadata"], item["apiVersion"]
            where = f"/namespaces/{about['namespace']}" if about.get("namespace") else ""
            path = f"/api{'s' if '/' in version else ''}/{version}{where}/{item['kind'].lower()}s/{about['name']}"
            client.json("PATCH", f"{path}?fieldManager=conformance&force=true", item, {"Content-Type": "application/apply-patch+yaml"})

    # ── its managers ──

    def tables(self):
        """What the configuration says for its managers and for clusters, which are on this machine."""
        services = "".join(f'"{service}" = "127.0.0.1:{manager.webhook}"\n' for manager in self.managers for service in manager.services())
        off = "".join(f'"{group}" = "off"\n' for manager in self.managers for name, _, _, _, group in MANAGERS if name == manager.name)
        return (f'[cluster]\nallow = ["{self.clusters}"]\n[cluster.controllers]\n{off}[api.webhooks.services]\n{services}'
                f'[host]\n{self.host}')

    def have_act(self, found):
        """Installs its managers, starts them, and puts their webhooks into force once all of them answer."""
        for manager in self.managers:
            self.install(manager)
        for manager in self.managers:
            self.run(manager, found)
        for manager in self.managers:
            self.wait(manager)
        for manager in self.managers:
            self.hook(manager)

    def install(self, manager):
        """Applies what a release has beside its Deployment, and gives its webhooks an authority as cert-manager does."""
        folder = self.folder / manager.name
        folder.mkdir()
        authority = certificates(folder, manager)
        for document in manager.of_kind("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            for webhook in document["webhooks"]:
                webhook["clientConfig"]["caBundle"] = authority
        for document in manager.of_kind("CustomResourceDefinition"):
            if document["spec"].get("conversion", {}).get("strategy") == "Webhook":
                document["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = authority
        account = {"kind": "ServiceAccount", "namespace": "slipway-system", "name": manager.name}
        for document in manager.of_kind("RoleBinding"):
            document["subjects"] = [account]
        self.apply(*manager.of_kind("Namespace"))
        self.apply(*manager.of_kind("CustomResourceDefinition"))
        self.apply(*manager.of_kind("ClusterRole", "Role", "RoleBinding"))
        roles = [word for role in manager.roles() for word in ("--role", role)]
        token = check_output([binary(), "token", "create", manager.name, *roles, "--ttl", "1d", "-o", "kubeconfig", "--config", self.config])
        (folder / "kubeconfig").write_text(token)

    def run(self, manager, found):
        """Starts a manager's program, as in the place that a pod would be."""
        folder = self.folder / manager.name
        # The namespace of its Lease is known to a manager only from this file.
        place = "/run/secrets/kubernetes.io/serviceaccount"
        script = f'mount -t tmpfs tmpfs /run && mkdir -p {place} && printf %s {manager.namespace()} > {place}/namespace && exec "$@"'
        self.spawn(manager.name, ["unshare", "--mount", "sh", "-c", script, "sh", found["programs"][manager.program], *manager.arguments(),
                                  f"--webhook-cert-dir={folder}"],
                   env=os.environ | {"KUBECONFIG": str(folder / "kubeconfig")} | manager.environment())

    def wait(self, manager):
        check = ["curl", "-sf", f"http://127.0.0.1:{manager.health}/readyz"]
        self.ready(manager.name, f"the manager {manager.name}", lambda: check_output(check, deadline=10), 120)

    def elected(self, manager):
        """Who leads by the Lease of a manager."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{manager.namespace()}/leases"
        return [lease["spec"].get("holderIdentity") for lease in self.client().json("GET", path)["items"]]

    def hook(self, manager):
        """Puts the webhooks into force."""
        self.apply(*manager.of_kind("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"))


def certificates(folder, manager):
    """An authority and a certificate of a manager's webhooks; returns the former for a caBundle."""
    run = partial(check_output, deadline=60, cwd=folder)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    run(["openssl", "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=issuer"])
    names = ",".join(f"DNS:{name}.{namespace}.svc" for namespace, name in (service.split("/") for service in manager.services()))
    run(["openssl", "req", "-x509", "-CA", "ca.crt", "-CAkey", "ca.key", *key, "-keyout", "tls.key", "-out", "tls.crt", "-subj", "/CN=webhook",
         "-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"subjectAltName={names}"])
    return check_output(["base64", "-w0", folder / "ca.crt"])


# ── what is done ──


def metadata(name, **more):
    return {"name": name, "namespace": NAMESPACE} | more


def machine_template(rack, pool, version):
    return {"apiVersion": f"{INFRASTRUCTURE}/v1beta2", "kind": "Metal3MachineTemplate", "metadata": metadata(f"{pool}-{version.replace('.', '-')}"),
            "spec": {"template": {"spec": {"automatedCleaningMode": "metadata", "dataTemplate": {"name": pool}, "image": rack.image(version)}}}}


def reference(group, kind, name):
    return {"apiGroup": group, "kind": kind, "name": name}


def objects(rack, port):
    """A cluster with a machine of its control plane and one worker, as upstream's own templates write it."""
    plane, workers = f"{NAME}-plane", f"{NAME}-workers"
    registration = {"nodeRegistration": {"name": "{{ ds.meta_data.name }}", "kubeletExtraArgs": [
        {"name": "node-labels", "value": "metal3.io/uuid={{ ds.meta_data.uuid }}"}]}}
    labels = {f"{CORE}/cluster-name": NAME, "nodepool": "nodepool-0"}
    data = {"metaData": {"objectNames": [{"key": "name", "object": "machine"}, {"key": "local-hostname", "object": "machine"}],
                         "ipAddressesFromPool": [{"key": "address", "name": NAME}]}}
    template = lambda pool: reference(INFRASTRUCTURE, "Metal3MachineTemplate", f"{pool}-{BEFORE.replace('.', '-')}")
    # The API server takes a while to find another member of etcd; ten seconds are too short for that on a busy machine.
    deletion = {"nodeDeletionTimeoutSeconds": 120}
    return [
        {"apiVersion": f"{ADDRESSES}/v1alpha1", "kind": "IPPool", "metadata": metadata(NAME),
         "spec": {"clusterName": NAME, "namePrefix": NAME, "prefix": 24, "gateway": "192.0.2.1", "pools": [{"start": "192.0.2.10", "end": "192.0.2.99"}]}},
        *({"apiVersion": f"{INFRASTRUCTURE}/v1beta2", "kind": "Metal3DataTemplate", "metadata": metadata(pool),
           "spec": {"clusterName": NAME} | data} for pool in (plane, workers)),
        *(machine_template(rack, pool, BEFORE) for pool in (plane, workers)),
        {"apiVersion": f"{BOOTSTRAP}/v1beta2", "kind": "KubeadmConfigTemplate", "metadata": metadata(workers),
         "spec": {"template": {"spec": {"joinConfiguration": registration}}}},
        {"apiVersion": f"{INFRASTRUCTURE}/v1beta2", "kind": "Metal3Cluster", "metadata": metadata(NAME),
         "spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": port}, "cloudProviderEnabled": False}},
        {"apiVersion": f"{PLANE}/v1beta2", "kind": "KubeadmControlPlane", "metadata": metadata(plane), "spec": {
            "replicas": 1, "version": BEFORE, "machineTemplate": {"spec": {"infrastructureRef": template(plane), "deletion": deletion}},
            "kubeadmConfigSpec": {"initConfiguration": registration, "joinConfiguration": registration}}},
        {"apiVersion": f"{CORE}/v1beta2", "kind": "MachineDeployment", "metadata": metadata(workers, labels=labels), "spec": {
            "clusterName": NAME, "replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
                "clusterName": NAME, "version": BEFORE, "bootstrap": {"configRef": reference(BOOTSTRAP, "KubeadmConfigTemplate", workers)},
                "infrastructureRef": template(workers), "deletion": deletion}}}},
        {"apiVersion": f"{CORE}/v1beta2", "kind": "Cluster", "metadata": metadata(NAME), "spec": {
            "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/12"]}, "pods": {"cidrBlocks": ["192.168.0.0/18"]}, "serviceDomain": "cluster.local"},
            "infrastructureRef": reference(INFRASTRUCTURE, "Metal3Cluster", NAME), "controlPlaneRef": reference(PLANE, "KubeadmControlPlane", plane)}},
    ]


def is_worker(machine):
    return f"{CORE}/control-plane" not in machine["metadata"]["labels"]


class Life:
    """The life of a cluster, and what it leaves at the end of each stage."""

    def __init__(self, rack, cluster):
        self.rack, self.cluster, self.facts, self.took = rack, cluster, {}, {}

    def ready(self, planes, workers, version):
        """Whether so many machines are what they are to be, and who keeps them says so."""
        found = self.rack.list("machines")
        well = [machine for machine in found if machine.get("status", {}).get("phase") == "Running" and machine["spec"].get("version") == version
                and not machine["metadata"].get("deletionTimestamp")]
        if len(found) != planes + workers or len(well) != len(found):
            return "…" + ", ".join(f"{machine['metadata']['name']} {machine.get('status', {}).get('phase')}" for machine in found)
        keepers = [*self.rack.list("kubeadmcontrolplanes"), *self.rack.list("machinedeployments"), *self.rack.list("clusters")]
        bad = [f"{item['kind']}: {one['message']}" for item in keepers for one in item.get("status", {}).get("conditions", [])
               if one["type"] == "Available" and one["status"] != "True"]
        # What went is missed until somebody looks again.
        bad += [f"{item['kind']}: {one['type']} is {one['status']}" for item in keepers for one in item.get("status", {}).get("conditions", [])
                if one["type"] in ("EtcdClusterHealthy", "ControlPlaneComponentsHealthy") and one["status"] != "True"]
        bad += [f"{item['kind']} rolls out" for item in keepers for one in item.get("status", {}).get("conditions", [])
                if one["type"] in ("RollingOut", "ScalingUp", "ScalingDown") and one["status"] != "False"]
        return not bad or "…" + "; ".join(bad)

    def until(self, what, check, deadline=600):
        """Waits while machines live on."""
        def checked():
            self.cluster.follow()
            for server in (self.rack, self.cluster):
                for name, process in server.processes.items():
                    # A member that was removed from etcd ends by itself.
                    if process.poll() is not None and not (name.startswith("etcd-") and process.returncode == 0):
                        raise GiveUp(f"{name} ended with {process.returncode}: {' / '.join(tail(server.folder / f'{name}.log', 4))}")
            return check()
        return wait_for(what, checked, deadline, every=1.0)

    def stage(self, name, check):
        """Waits for the end of a stage, and for quiet, and keeps what is there then."""
        began = time.monotonic()
        self.until(f"{name}: {check.__doc__ or 'its end'}", check)
        self.took[name] = time.monotonic() - began
        last = [None, time.monotonic()]

        def quiet():
            now = everything(self.rack)
            # What was reached may be lost again for a while, where a machine is busy.
            if now != last[0] or check() is not True:
                last[:] = [now, time.monotonic()]
            return time.monotonic() - last[1] >= QUIET
        self.until(f"quiet after {name}", quiet, 240)
        self.facts[name] = last[0]
        (self.rack.folder / "so-far.json").write_text(json.dumps({"facts": {stage: {key: sorted(value) for key, value in facts.items()}
                                                                            for stage, facts in self.facts.items()}}))
        say(f"{name}: after {self.took[name]:.1f} s")

    # ── stages ──

    def create(self):
        for item in objects(self.rack, self.cluster.port):
            self.rack.apply(item)
        self.stage("create", lambda: self.ready(1, 1, BEFORE))

    def scale(self):
        self.rack.merge("machinedeployments", f"{NAME}-workers", {"spec": {"replicas": 2}})
        self.stage("scale", lambda: self.ready(1, 2, BEFORE))

    def pause(self):
        """A pause, during which somebody wants a worker less, and then its end."""
        workers = f"{NAME}-workers"
        # Which one goes is anybody's choice otherwise.
        youngest = max((one for one in self.rack.list("machines") if is_worker(one)), key=lambda one: one["metadata"]["creationTimestamp"])
        self.rack.merge("machines", youngest["metadata"]["name"], {"metadata": {"annotations": {f"{CORE}/delete-machine": ""}}})
        self.rack.merge("clusters", NAME, {"spec": {"paused": True}})
        self.rack.merge("machinedeployments", workers, {"spec": {"replicas": 1}})

        def paused():
            items = [item for plural in PATHS if plural not in UNTOLD for item in self.rack.list(plural)]
            said = {f"{item['kind']} {one['status']}" for item in items for one in item.get("status", {}).get("conditions", [])
                    if one["type"] == "Paused"}
            return (said and all(text.endswith("True") for text in said)) or f"…{sorted(said)}"
        self.until("all to be paused", paused)
        before = versions(self.rack)
        self.stage("pause", paused)
        written = {key for key, version in versions(self.rack).items() if before.get(key) != version}
        self.facts["pause"]["what is written while paused"] = {plain(key) for key in written}
        self.rack.merge("clusters", NAME, {"spec": {"paused": None}})
        self.stage("go on", lambda: self.ready(1, 1, BEFORE))

    def check_health(self, **more):
        """A health check of workers, for which a node that nobody hears of is a sick one after five seconds."""
        self.rack.apply({"apiVersion": f"{CORE}/v1beta2", "kind": "MachineHealthCheck", "metadata": metadata(f"{NAME}-workers"), "spec": {
            "clusterName": NAME, "selector": {"matchLabels": {"nodepool": "nodepool-0"}},
            "checks": {"nodeStartupTimeoutSeconds": 600, "unhealthyNodeConditions": [{"type": "Ready", "status": "Unknown", "timeoutSeconds": 5}]}}
            | more})

    def healthy(self):
        status = self.rack.get("machinehealthchecks", f"{NAME}-workers").get("status", {})
        return (status.get("currentHealthy") == 1 and status.get("expectedMachines") == 1) or f"…{status.get('currentHealthy')} healthy"

    def worker(self):
        return next(machine for machine in self.rack.list("machines") if is_worker(machine))

    def remediate(self):
        """A node that falls silent; whoever keeps its machine replaces it."""
        self.check_health()
        self.stage("watch over", self.healthy)
        victim = self.worker()
        self.cluster.fall_silent(victim["status"]["nodeRef"]["name"])

        def replaced():
            well = self.ready(1, 1, BEFORE)
            return self.healthy() if well is True and self.worker()["metadata"]["name"] != victim["metadata"]["name"] else f"…{well}"
        self.stage("remediate", replaced)

    def reboot(self):
        """A node that falls silent; Metal3 switches its machine off and on."""
        name = f"{NAME}-workers"
        self.rack.apply({"apiVersion": f"{INFRASTRUCTURE}/v1beta2", "kind": "Metal3RemediationTemplate", "metadata": metadata(name), "spec": {
            "template": {"spec": {"strategy": {"type": "Reboot", "retryLimit": 1, "timeoutSeconds": 300}}}}})
        self.check_health(remediation={"templateRef": {"apiVersion": f"{INFRASTRUCTURE}/v1beta2", "kind": "Metal3RemediationTemplate", "name": name}})
        self.until("the health check to see its machine", self.healthy)
        machine = self.worker()
        self.cluster.fall_silent(machine["status"]["nodeRef"]["name"])
        self.until("a remediation", lambda: self.rack.list("metal3remediations") or "…none")

        def back():
            if left := self.rack.list("metal3remediations"):
                return f"…{left[0].get('status', {}).get('phase')}"
            well = self.ready(1, 1, BEFORE)
            if well is True and self.worker()["metadata"]["name"] != machine["metadata"]["name"]:
                raise GiveUp("the machine was replaced")
            return self.healthy() if well is True else well
        self.stage("reboot", back)
        self.rack.client().json("DELETE", self.rack.path("machinehealthchecks", name))
        self.rack.client().json("DELETE", self.rack.path("metal3remediationtemplates", name))

    def upgrade(self):
        plane, workers = f"{NAME}-plane", f"{NAME}-workers"
        for pool in (plane, workers):
            self.rack.apply(machine_template(self.rack, pool, AFTER))
        template = lambda pool: {"infrastructureRef": {"name": f"{pool}-{AFTER.replace('.', '-')}"}}
        self.rack.merge("kubeadmcontrolplanes", plane, {"spec": {"version": AFTER, "machineTemplate": {"spec": template(plane)}}})
        self.rack.merge("machinedeployments", workers, {"spec": {"template": {"spec": {"version": AFTER} | template(workers)}}})
        self.stage("upgrade", lambda: self.ready(1, 1, AFTER))

    def grow(self):
        """A control plane of three."""
        self.rack.merge("kubeadmcontrolplanes", f"{NAME}-plane", {"spec": {"replicas": 3}})
        self.stage("grow", lambda: self.ready(3, 1, AFTER))

    def shrink(self):
        self.rack.merge("kubeadmcontrolplanes", f"{NAME}-plane", {"spec": {"replicas": 1}})
        self.stage("shrink", lambda: self.ready(1, 1, AFTER))

    def delete(self):
        self.rack.client().json("DELETE", self.rack.path("clusters", NAME))
        self.stage("delete", lambda: (not self.rack.list("clusters") or "…the Cluster") and self.rack.available())


# All that is compared, in this order.
STAGES = ["create", "scale", "pause", "remediate", "reboot", "upgrade", "grow", "shrink", "delete"]
# Kinds whose upstream manager is not told of a pause before it looks anyway.
UNTOLD = {"metal3clusters"}


# ── what is left ──

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
UID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
# Random ends of names, and hashes of templates.
MADE = re.compile(rf"\b{NAME}-(plane|workers)((?:-(?!metadata|networkdata)[a-z0-9]{{5,10}}){{1,2}})(?![a-z0-9])")
NUMBERED = re.compile(rf"\b{NAME}-(plane|workers)-\d+\b")
PORT = re.compile(r"127\.0\.0\.1:\d+|(?<=controlPlaneEndpoint\.port = )\d+")
DIGEST, TOKEN = re.compile(r"\b[0-9a-f]{64}\b"), re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b")
# By these labels and fields of selectors, a template's hash.
HASH = re.compile(r"(machine-template-hash\s*=\s*)[a-z0-9-]+")
# What only the API server or the rack decides.
IGNORED = {"resourceVersion", "uid", "generation", "creationTimestamp", "managedFields", "selfLink", "observedGeneration", "lastTransitionTime",
           "lastUpdated", "deletionTimestamp", "deletionGracePeriodSeconds"}


def plain(text):
    """A text without what differs from run to run."""
    for pattern, word in ((UID, "UID"), (TIME, "TIME"), (PORT, "ADDRESS"), (DIGEST, "DIGEST"), (TOKEN, "TOKEN"), (MADE, rf"{NAME}-\1-*"),
                          (NUMBERED, rf"{NAME}-\1-N"), (re.compile(r"\bsim-\d+"), "HOST"), (HASH, r"\1HASH"),
                          (re.compile(r"\b(127\.6\d\.\d+\.\d+|192[.-]0[.-]2[.-]\d+)\b"), "A")):
        text = pattern.sub(word, text)
    return text


def leaves(value, path=""):
    """Every value with its path; of maps and lists what is in them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in IGNORED:
                yield from leaves(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path + "[]")
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


def facts_of(item):
    """What an object says, one fact a line."""
    about = item["metadata"]
    for key in ("labels", "annotations"):
        for name, value in (about.get(key) or {}).items():
            short = value if len(value) < 200 else "…"
            yield plain(f"{key} {name} = {short}")
    for owner in about.get("ownerReferences") or []:
        marks = "".join(f" {mark}" for mark in ("controller", "blockOwnerDeletion") if owner.get(mark))
        yield f"owner {owner['kind']} {plain(owner['name'])}{marks}"
    for name in about.get("finalizers") or []:
        yield f"finalizer {name}"
    if item["kind"] == "Secret":
        yield f"type {item.get('type')}"
        for key in item.get("data") or {}:
            yield f"data {key}"
        return
    if item["kind"] == "ConfigMap":
        for key in item.get("data") or {}:
            yield f"data {key}"
        return
    for path, value in leaves(item.get("spec") or {}, "spec"):
        yield plain(f"{path} = {value}")
    status = dict(item.get("status") or {})
    for where, found in (("condition", status.pop("conditions", None)),
                         ("old condition", ((status.get("deprecated") or {}).get("v1beta1") or {}).pop("conditions", None))):
        for one in found or []:
            yield f"{where} {one['type']} = {one['status']} {one.get('reason', '')}"
    for path, value in leaves(status, "status"):
        yield plain(f"{path} = {value}")


def everything(rack):
    """The facts of every object, by what it is: kind and the name without what is by chance."""
    found = defaultdict(set)
    for plural in PATHS:
        listed = rack.client().json("GET", rack.path(plural))
        kind = listed["kind"].removesuffix("List")
        for item in listed["items"]:
            item.setdefault("kind", kind)
            if kind == "ConfigMap" and item["metadata"]["name"] == "kube-root-ca.crt":
                continue
            if kind == "BareMetalHost":
                # What a host is like is the rack's; who uses it, and for what, is not. One that nobody ever had is as the rack made it.
                fresh = not item["status"].get("operationHistory", {}).get("provision", {}).get("start")
                item = item | {"status": {"provisioning": {"state": item["status"]["provisioning"]["state"]}, "poweredOn": item["status"]["poweredOn"]}}
                item["spec"] = {key: value for key, value in item["spec"].items() if key not in ("bmc", "bootMACAddress", "bootMode")}
                name = "used" if item["spec"].get("consumerRef") else "new" if fresh else "free"
            else:
                name = plain(item["metadata"]["name"])
            found[f"{kind} {name}"] |= set(facts_of(item))
    return dict(found)


def versions(rack):
    """The version of each object; not of hosts, whose life goes on, nor of a deployment, which may note that somebody changed it."""
    return {f"{plural} {item['metadata']['name']}": item["metadata"]["resourceVersion"] for plural in PATHS
            if plural not in ("baremetalhosts", "machinedeployments") for item in rack.list(plural)}


def audited(rack):
    """What was asked of the API: lines of the audit log."""
    log = rack.config.parent / "data/logs/audit.log"
    return [json.loads(line) for line in log.read_text().splitlines()]


def order(rack):
    """In which order the objects of the first machine were made, and those of its cluster."""
    made = []
    for line in audited(rack):
        about, code = line.get("objectRef", {}), line.get("responseStatus", {}).get("code", 0)
        name = plain(about.get("name") or "")
        if line["verb"] in ("create", "patch", "apply") and code == 201 and about.get("resource") in PATHS and "workers" not in name:
            key = f"{about['resource']} {name}"
            if line["user"]["username"] != "slipway-admin" and key not in made:
                made.append(key)
    return made


def refusals(rack, managers):
    """What the API refused managers, beside what is only not there, or has another version."""
    found = defaultdict(int)
    for line in audited(rack):
        about, answer = line.get("objectRef", {}), line.get("responseStatus", {})
        who = line["user"].get("username", "").rpartition(":")[2]
        if who in managers and answer.get("code", 0) >= 400 and answer["code"] not in (404, 409):
            found[f"{who}: {line['verb']} {about.get('resource')}/{about.get('subresource', '')}: {answer['code']} {answer.get('reason')}"] += 1
    return dict(found)


# ── both ──


def live(who, options, found):
    """A cluster's whole life under managers or built-in controllers: facts and seconds by stage, and what processes took."""
    folder = Path(options.folder, who)
    shutil.rmtree(folder, ignore_errors=True)
    managers = released(found) if who == "upstream" else []
    for manager in managers:
        # What a busy machine has it miss, as a member of etcd that is slow to answer, it looks at again after ten minutes otherwise.
        manager.more = ["--sync-period=1m"]
    say(f"{who}: " + (", ".join(manager.program for manager in managers) or "Slipway's own controllers"))
    version_of = lambda host: re.search(r"node-(v[\d.]+)\.raw", host["status"]["provisioning"]["image"]["url"])[1]
    with Rack(folder, managers) as rack, Cluster(folder / "cluster", rack, version_of) as cluster:
        rack.have_act(found)
        if managers:
            say(f"who leads, by Leases: {[rack.elected(manager) for manager in managers]}")
        life, names = Life(rack, cluster), [manager.name for manager in managers]
        try:
            for stage in options.stages:
                getattr(life, stage)()
        finally:
            for text, count in refusals(rack, names).items():
                say(f"  refused {count} times: {text}")
            usage = {name: used(rack.processes[name].pid) for name in names} | {"slipway": used(rack.process())}
            result = {"facts": {stage: {key: sorted(value) for key, value in facts.items()} for stage, facts in life.facts.items()},
                      "took": life.took, "usage": usage, "order": order(rack)}
            (folder / "facts.json").write_text(json.dumps(result, indent=1))
            if options.command:
                subprocess.run(options.command, env=os.environ | {"KUBECONFIG": str(rack.kubeconfig)})
        if cluster.faults:
            raise LabError("what no kubeadm stands: " + "; ".join(cluster.faults))
    return result


def used(pid):
    """Processor time in seconds and the most memory in megabytes; nothing of a process that is gone."""
    if not Path(f"/proc/{pid}/status").exists():
        return 0, 0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(peak[1]) / 1000 if peak else 0


def differences(ours, theirs):
    """Every difference as a line, with the stages in which it is, and what was made in another order."""
    found = defaultdict(list)
    for stage, left in ours["facts"].items():
        right = theirs["facts"].get(stage, {})
        for key in sorted(left.keys() | right.keys()):
            if key not in left or key not in right:
                # Each has its own choice of hosts.
                if not key.startswith("BareMetalHost "):
                    found[f"{key}: {'only built-in' if key in left else 'only upstream'}"].append(stage)
                continue
            for fact in sorted(set(left[key]) ^ set(right[key])):
                found[f"{key}: {'built-in' if fact in left[key] else 'upstream'}: {fact}"].append(stage)
    return [f"{text} ({', '.join(stages)})" for text, stages in sorted(found.items())] + list(inverted(ours["order"], theirs["order"]))


def inverted(ours, theirs):
    """What is made in another order, of what both make."""
    both = [key for key in theirs if key in ours]
    for at, first in enumerate(both):
        for then in both[at + 1:]:
            if ours.index(then) < ours.index(first):
                yield f"order: built-in makes {then} before {first}"


def check(lines, whole):
    """Every difference needs an entry, and every entry a difference where all managers ran through everything."""
    entries = tomllib.loads(ACCEPTED.read_text())["difference"]
    patterns = [re.compile(pattern) for entry in entries for pattern in entry["lines"]]
    hit, wrong = set(), []
    for text in lines:
        by = next((pattern for pattern in patterns if pattern.search(text)), None)
        hit.add(by)
        if by is None:
            wrong.append(f"not accepted: {text}")
    wrong += [f"{ACCEPTED.name}: finds no difference any more: {pattern.pattern}" for pattern in patterns if whole and pattern not in hit]
    if wrong:
        print("\n".join(wrong))
        raise LabError(f"{len(wrong)} faults: upstream's managers and the built-in controllers differ otherwise than {ACCEPTED.name} says")


def report(results):
    """Seconds by stage, what was made in which order, and what processes took."""
    for who, result in results.items():
        say(f"{who}: " + ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in result["took"].items()))
        say("  made in this order: " + ", ".join(result["order"]))
        say("  " + ", ".join(f"{name} {seconds:.1f} s of processor time and {memory:.0f} MB" for name, (seconds, memory) in result["usage"].items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--git", action="append", default=[], metavar="MODULE=FOLDER")
    parser.add_argument("--stages", type=lambda text: text.split(","), default=STAGES)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("what", choices=["check", "list", "run"])
    parser.add_argument("who", nargs="?", choices=["upstream", "built-in"])
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if (options.what == "run") != bool(options.who):
        parser.error("run needs `upstream` or `built-in`, and nothing else does")
    with tempfile.TemporaryDirectory() as folder:
        options.folder = options.folder or Path(folder)
        options.folder.mkdir(parents=True, exist_ok=True)
        found = enter(options)
        results = {who: live(who, options, found) for who in ([options.who] if options.who else ["upstream", "built-in"])}
    report(results)
    if options.what == "run":
        return
    lines = differences(results["built-in"], results["upstream"])
    if options.what == "list":
        print("\n".join(lines))
    else:
        check(lines, len(found["folders"]) == 3 and options.stages == STAGES)
        say(f"what is left is the same, but for {len(lines)} differences with a reason")


if __name__ == "__main__":
    try:
        main()
    except LabError as error:
        fail(error)
