"""A cluster of Kubernetes on simulated machines: what their systems would do once an image is on them, without the systems.

Its API server and its etcd are real, with the authorities that a machine's user data brings, and so are the tokens by which
machines join. Nodes and the pods of their control planes are objects that nobody runs; a port of such a pod is the port of a
process here (`tests/lab/kubelet.go`).
"""

import base64
import json
import re
import ssl
import subprocess
import time
from contextlib import suppress
from http.client import HTTPSConnection
from pathlib import Path

from servers import Client, LabError, Server, check_output, free_port, kubeconfig, programs, say, tools, wait_for

YAML = ("import json, sys, yaml; reader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader); "
        "json.dump([list(yaml.load_all(text, reader)) for text in json.load(sys.stdin)], sys.stdout, default=str)")
INIT, JOIN = "/run/kubeadm/kubeadm.yaml", "/run/kubeadm/kubeadm-join-config.yaml"
PKI = "/etc/kubernetes/pki/"
KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
SYSTEM = "/api/v1/namespaces/kube-system"
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd")
# Members of etcd that are there at once, at most: those of three machines, and one that comes before another goes.
MEMBERS = 5


def yaml_documents(*texts):
    """The documents of each text, read where the Python client has brought the library."""
    read = check_output([tools.python_client() / "bin/python", "-c", YAML], deadline=300, input=json.dumps(texts))
    return json.loads(read)


def decoded(secret, key):
    return base64.b64decode((secret.get("data") or {}).get(key, "")).decode()


class Machine:
    """What became of a host: the node of its system."""

    def __init__(self, installation, node, version, files, registration):
        self.installation, self.node, self.version, self.files, self.registration = installation, node, version, files, registration
        self.on, self.member = True, None

    def has_control_plane(self):
        return PKI + "ca.key" in self.files


class Cluster(Server):
    """The cluster, on a port that its endpoint names. It begins with the first machine that is told to begin it."""

    name = "cluster"

    def __init__(self, folder, rack, version_of):
        super().__init__(folder)
        self.rack, self.version_of = rack, version_of
        self.port, self.kubelet = free_port(), free_port()
        # The API server is told of all of them before there is one.
        self.places = [(free_port(), free_port()) for _ in range(MEMBERS)]
        self.machines, self.built, self.faults = {}, {}, []

    def start(self):
        self.built = programs.programs("etcd", "kube-apiserver", "played-kubelet")

    # ── machines ──

    def follow(self):
        """Does what machines would have done since the last call."""
        hosts = {host["metadata"]["name"]: host for host in self.rack.list("baremetalhosts")}
        for name in [name for name, machine in self.machines.items() if name not in hosts or installation(hosts[name]) != machine.installation]:
            self.remove(name)
        for name, host in hosts.items():
            if installation(host) is None:
                continue
            on = host["status"].get("poweredOn", False)
            if name not in self.machines:
                # One that is on its way out still runs what it has.
                if on and host["spec"].get("image") and host["spec"].get("userData"):
                    self.begin(name, host)
            elif on != self.machines[name].on:
                self.switch(name, on)

    def begin(self, name, host):
        """A system starts for the first time, and does what its user data says."""
        drive, user_data = self.drive(host)
        files, commands = cloud_config(user_data, drive)
        done = files.get(INIT) or files.get(JOIN)
        if done is None:
            raise LabError(f"{name}: the user data has no configuration of kubeadm: {sorted(files)}")
        documents = {document["kind"]: document for document in yaml_documents(done)[0] if document}
        kind = next(kind for kind in ("InitConfiguration", "JoinConfiguration") if kind in documents)
        registration = documents[kind].get("nodeRegistration", {})
        node = registration.get("name") or drive["local-hostname"]
        if not any("kubeadm " + ("init" if INIT in files else "join") in str(command) for command in commands):
            self.faults.append(f"{name}: the user data does not run kubeadm: {commands}")
        machine = Machine(installation(host), node, self.version_of(host), files, registration)
        if INIT in files:
            self.init(machine, documents["ClusterConfiguration"])
        else:
            self.join(machine, documents[kind])
        self.register(machine)
        self.machines[name] = machine
        say(f"{name}: is the node {node}")

    def drive(self, host):
        """Metadata and user data of a host's config drive."""
        name, spec = host["metadata"]["name"], host["spec"]
        secrets = {key: self.rack.get("secrets", spec[key]["name"]) for key in ("userData", "metaData", "networkData") if spec.get(key)}
        base = {"uuid": host["metadata"]["uid"], "name": name, "local-hostname": name, "local_hostname": name}
        given = yaml_documents(decoded(secrets["metaData"], "metaData"))[0][0] if secrets.get("metaData") else {}
        user = secrets.get("userData") or {}
        return base | given, decoded(user, "value") or decoded(user, "userData")

    def init(self, machine, configuration):
        """kubeadm init."""
        if self.processes:
            self.faults.append(f"{machine.node} begins a cluster that is there")
            return
        pki = self.folder / "pki"
        for path, text in machine.files.items():
            if path.startswith(PKI):
                file = pki / path.removeprefix(PKI)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        names = "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default.svc"
        self.issue("ca", "apiserver", "/CN=kube-apiserver", "-addext", names, "-addext", "extendedKeyUsage=serverAuth")
        self.issue("ca", "kubelet", "/CN=system:node", "-addext", names, "-addext", "extendedKeyUsage=serverAuth")
        self.issue("ca", "admin", "/O=system:masters/CN=kubernetes-admin", "-addext", "extendedKeyUsage=clientAuth")
        self.issue("etcd/ca", "etcd/server", "/CN=etcd", "-addext", names, "-addext", "extendedKeyUsage=serverAuth,clientAuth")
        self.url = f"https://127.0.0.1:{self.port}"
        self.kubeconfig.write_text(kubeconfig(self.url, (pki / "ca.crt").read_bytes(), {
            f"client-{name}-data": base64.b64encode((pki / f"admin.{end}").read_bytes()).decode()
            for name, end in (("certificate", "crt"), ("key", "key"))}))
        self.spawn("kubelet", [self.built["played-kubelet"], f"127.0.0.1:{self.kubelet}", pki / "kubelet.crt", pki / "kubelet.key",
                               self.table()])
        self.join_etcd(machine)
        self.spawn("kube-apiserver", [
            self.built["kube-apiserver"], "--etcd-servers=" + ",".join(f"https://127.0.0.1:{client}" for client, _ in self.places),
            f"--etcd-cafile={pki}/etcd/ca.crt", f"--etcd-certfile={pki}/etcd/server.crt", f"--etcd-keyfile={pki}/etcd/server.key",
            "--bind-address=127.0.0.1", f"--secure-port={self.port}", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
            f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key", f"--client-ca-file={pki}/ca.crt",
            "--authorization-mode=RBAC", "--enable-bootstrap-token-auth", "--disable-admission-plugins=ServiceAccount",
            f"--service-account-key-file={pki}/sa.pub", f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-cluster-ip-range={configuration['networking']['serviceSubnet']}",
            f"--kubelet-client-certificate={pki}/admin.crt", f"--kubelet-client-key={pki}/admin.key",
            "--kubelet-preferred-address-types=InternalIP", "--enable-priority-and-fairness=false", "--profiling=false", "--v=1"])
        self.ready("kube-apiserver", "the cluster's API server", lambda: self.client().request("GET", "/readyz")[0] == 200, 600)
        wait_for("kube-system", lambda: self.client().request("GET", SYSTEM)[0] == 200, 300, every=0.2)
        version, text = configuration["kubernetesVersion"], next(text for text in documents_of(machine.files[INIT]) if "ClusterConfiguration" in text)
        self.put("configmaps", {"metadata": {"name": "kubeadm-config"}, "data": {"ClusterConfiguration": text.strip() + "\n"}})
        self.put("configmaps", {"metadata": {"name": "coredns"}, "data": {"Corefile": ".:53 {\n    ready\n    kubernetes cluster.local\n}\n"}})
        self.put("daemonsets", workload("kube-proxy", f"registry.k8s.io/kube-proxy:{version}", {"k8s-app": "kube-proxy"}))
        self.put("deployments", workload("coredns", f"registry.k8s.io/coredns/coredns:v{programs.COREDNS}", {"k8s-app": "kube-dns"}))

    def issue(self, authority, name, subject, *words):
        """A certificate of one of the cluster's authorities."""
        check_output(["openssl", "req", "-x509", "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", *KEY, "-keyout", f"{name}.key",
                      "-out", f"{name}.crt", "-subj", subject, "-addext", "basicConstraints=critical,CA:FALSE", *words],
                     deadline=60, cwd=self.folder / "pki")

    def join(self, machine, configuration):
        """kubeadm join: the token must be one, and the authority the one that it names."""
        found = configuration["discovery"]["bootstrapToken"]
        pem = check_output(["openssl", "x509", "-in", "ca.crt", "-noout", "-pubkey"], cwd=self.folder / "pki")
        digest = subprocess.run(["openssl", "pkey", "-pubin", "-outform", "der"], input=pem.encode(), capture_output=True, check=True).stdout
        digest = check_output(["openssl", "dgst", "-sha256", "-hex", "/dev/stdin"], input=digest.decode("latin1"), encoding="latin1").split()[-1]
        if found.get("caCertHashes") != [f"sha256:{digest}"]:
            self.faults.append(f"{machine.node}: the authority is sha256:{digest}, not {found.get('caCertHashes')}")
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        status, _, answer = Client(self.kubeconfig, {"token": found["token"]}).request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        if status != 201:
            self.faults.append(f"{machine.node}: its token is answered {status}: {answer[:200]}")
        if "controlPlane" in configuration:
            if not machine.has_control_plane():
                self.faults.append(f"{machine.node} joins the control plane without its keys")
            self.join_etcd(machine)

    def join_etcd(self, machine):
        """Starts the member of a machine, which the others are told of first."""
        client, peer = next(place for place in self.places if place not in [other.member for other in self.machines.values()])
        others = [other for other in self.machines.values() if other.member and other.on]
        cluster = [f"{machine.node}=https://127.0.0.1:{peer}"]
        if others:
            said = self.etcd(others[0], "/v3/cluster/member/add", {"peerURLs": [f"https://127.0.0.1:{peer}"]})
            cluster += [f"{member['name']}={url}" for member in said["members"] if member.get("name") for url in member["peerURLs"]]
        machine.member = (client, peer)
        self.start_member(machine, ",".join(cluster), "existing" if others else "new")
        self.write_table(machine)

    def start_member(self, machine, cluster="", state="existing"):
        pki, (client, peer) = self.folder / "pki/etcd", machine.member
        self.spawn(f"etcd-{machine.node}", [
            self.built["etcd"], "--name", machine.node, "--data-dir", self.folder / f"etcd-{machine.node}", "--unsafe-no-fsync",
            "--listen-client-urls", f"https://127.0.0.1:{client}", "--advertise-client-urls", f"https://127.0.0.1:{client}",
            "--listen-peer-urls", f"https://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"https://127.0.0.1:{peer}",
            "--initial-cluster", cluster, "--initial-cluster-state", state, "--log-level", "warn",
            "--client-cert-auth", "--trusted-ca-file", pki / "ca.crt", "--cert-file", pki / "server.crt", "--key-file", pki / "server.key",
            "--peer-client-cert-auth", "--peer-trusted-ca-file", pki / "ca.crt", "--peer-cert-file", pki / "server.crt",
            "--peer-key-file", pki / "server.key"])
        self.ready(f"etcd-{machine.node}", f"etcd of {machine.node}", lambda: self.etcd(machine, "/v3/maintenance/status", {}), 300)

    def etcd(self, machine, path, body):
        """An answer of a member's gateway for JSON."""
        context = ssl.create_default_context(cafile=self.folder / "pki/etcd/ca.crt")
        context.load_cert_chain(self.folder / "pki/etcd/server.crt", self.folder / "pki/etcd/server.key")
        connection = HTTPSConnection("127.0.0.1", machine.member[0], context=context, timeout=10)
        try:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise LabError(f"etcd of {machine.node}: {path}: {answer.status}: {text[:200]}")
        return json.loads(text)

    def table(self):
        return self.folder / "ports.json"

    def write_table(self, *more):
        """Tells the kubelet where the ports of pods are."""
        ports = {}
        for machine in [*self.machines.values(), *more]:
            if machine.member and machine.on:
                ports[f"etcd-{machine.node}:2379"] = f"127.0.0.1:{machine.member[0]}"
                ports[f"kube-apiserver-{machine.node}:6443"] = f"127.0.0.1:{self.port}"
        # Whole at any time: the kubelet reads it when it is asked.
        new = self.folder / "ports.new"
        new.write_text(json.dumps(ports))
        new.replace(self.table())

    # ── its objects ──

    def put(self, plural, item):
        group = "/apis/apps/v1/namespaces/kube-system" if plural in ("daemonsets", "deployments") else SYSTEM
        self.client().json("POST", f"{group}/{plural}", item)

    def register(self, machine):
        """The kubelet makes its node, and mirrors of its pods."""
        arguments = machine.registration.get("kubeletExtraArgs") or {}
        if isinstance(arguments, list):
            arguments = {argument["name"]: argument["value"] for argument in arguments}
        labels = dict(pair.split("=", 1) for pair in arguments.get("node-labels", "").split(",") if pair)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": machine.node, "labels": {"kubernetes.io/hostname": machine.node} | labels},
                "spec": {}}
        if arguments.get("provider-id"):
            node["spec"]["providerID"] = arguments["provider-id"]
        if machine.member:
            node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
            node["spec"]["taints"] = [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]
        client = self.client()
        # A node of an earlier system of the machine is taken over, as a kubelet does it.
        status, _, answer = client.request("POST", "/api/v1/nodes", node)
        if status not in (201, 409):
            raise LabError(f"the node {machine.node}: {status}: {answer[:300]}")
        self.say_ready(machine, "True")
        for component in COMPONENTS if machine.member else ():
            self.mirror(machine, component)

    def say_ready(self, machine, status):
        """The node's status as its kubelet, or who misses it, writes it."""
        info = dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion",
                              "kubeProxyVersion", "operatingSystem", "architecture"), "played") | {"kubeletVersion": machine.version}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": status, "lastTransitionTime": now, "lastHeartbeatTime": now, "reason": "KubeletReady" if status == "True" else "NodeStatusUnknown", "message": "played"}
        pressed = [{"type": f"{name}Pressure", "status": "False" if status == "True" else "Unknown", "reason": "Played", "message": "played"}
                   for name in ("Memory", "Disk", "PID")]
        said = {"conditions": [*pressed, ready], "nodeInfo": info, "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelet}},
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": machine.node}]}
        with suppress(LabError):
            self.client().json("PATCH", f"/api/v1/nodes/{machine.node}/status", {"status": said}, {"Content-Type": "application/merge-patch+json"})

    def mirror(self, machine, component):
        client, name = self.client(), f"{component}-{machine.node}"
        client.request("DELETE", f"{SYSTEM}/pods/{name}?gracePeriodSeconds=0")
        image = f"registry.k8s.io/{component}:{machine.version}"
        client.json("POST", f"{SYSTEM}/pods", {
            "metadata": {"name": name, "labels": {"component": component, "tier": "control-plane"},
                         "annotations": {"kubernetes.io/config.mirror": "played", "kubernetes.io/config.source": "file"}},
            "spec": {"nodeName": machine.node, "hostNetwork": True, "priorityClassName": "system-node-critical",
                     "containers": [{"name": component, "image": image}]}})
        now = "2026-01-01T00:00:00Z"
        container = {"name": component, "image": image, "imageID": image, "ready": True, "started": True, "restartCount": 0,
                     "state": {"running": {"startedAt": now}}}
        client.json("PATCH", f"{SYSTEM}/pods/{name}/status", {"status": {
            "phase": "Running", "startTime": now, "podIP": "127.0.0.1", "hostIP": "127.0.0.1", "containerStatuses": [container],
            "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]}},
            {"Content-Type": "application/merge-patch+json"})

    # ── power ──

    def switch(self, name, on):
        """A machine loses or gets its power."""
        machine = self.machines[name]
        say(f"{name}: its power {'comes' if on else 'goes'}")
        machine.on = on
        if machine.member and on:
            self.start_member(machine)
        elif machine.member:
            self.end_member(machine)
        self.write_table()
        if on:
            # Its node may have been taken away meanwhile.
            self.register(machine)
        else:
            self.say_ready(machine, "Unknown")

    def fall_silent(self, node):
        """Nothing is heard of a node any more, though its machine runs."""
        self.say_ready(next(machine for machine in self.machines.values() if machine.node == node), "Unknown")

    def end_member(self, machine):
        process = self.processes.pop(f"etcd-{machine.node}", None)
        if process:
            process.kill()
            process.wait()

    def remove(self, name):
        """A system is no more."""
        machine = self.machines.pop(name)
        say(f"{name}: the node {machine.node} is gone")
        if machine.member:
            self.end_member(machine)
        self.write_table()
        if self.url and any(other.member and other.on for other in self.machines.values()):
            self.say_ready(machine, "Unknown")
            for component in COMPONENTS if machine.member else ():
                with suppress(LabError, OSError):
                    self.client().request("DELETE", f"{SYSTEM}/pods/{component}-{machine.node}?gracePeriodSeconds=0", deadline=10)
        elif not self.machines:
            # Nothing is left of the cluster.
            self.stop(hard=True)


def installation(host):
    """What makes an installed system this one and no other; None when a host has none."""
    status = host.get("status", {})
    if status.get("provisioning", {}).get("state") != "provisioned":
        return None
    # Not the host's UID: the system stays when the object goes to another server.
    return status.get("operationHistory", {}).get("provision", {}).get("end")


def cloud_config(user_data, drive):
    """Files and commands of a cloud-config with Jinja's marks, as cloud-init reads it."""
    text = re.sub(r"\{\{\s*ds\.meta_data\.([\w-]+)\s*\}\}", lambda found: str(drive.get(found[1], "")), user_data)
    document = yaml_documents(text)[0][0]
    return {file["path"]: file.get("content", "") for file in document.get("write_files") or []}, document.get("runcmd") or []


def documents_of(text):
    return [document for document in re.split(r"(?m)^---\s*$", text) if document.strip()]


def workload(name, image, labels):
    """A DaemonSet or Deployment, of which nobody makes pods."""
    return {"metadata": {"name": name, "labels": labels}, "spec": {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": name, "image": image}]}}}}
