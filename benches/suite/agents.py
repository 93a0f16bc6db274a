"""Agents of nodes: many of them report to one appliance, and a new release reaches them."""

import base64
import email
import http.client
import json
import os
import re
import subprocess
import time
from pathlib import Path

from appliance import binary
from figures import Figure
from isolation import ADDRESS, BRIDGE, PREFIX
from start import API, Appliance, work_folder
from wait import LabError, check_output, short, wait_for

AGENTS = 500
# An appliance has 256 connections for an address, and an agent takes two: as many agents as this share one.
IN_A_ROOM = 20
# A report of each, in seconds: six times as often as nodes do it, so that there is something to measure.
HEARTBEAT = 10
# How long reports are counted, and how long agents rest before.
COUNTED, REST = 60, 15
GOAL_AGENT_MB = 20
NAMESPACE, CLUSTER = "bench", "edge"
ONE, TWO = "bench-1", "bench-2"


class Client:
    """The appliance's API as its administrator has it, over one connection."""

    def __init__(self, appliance):
        self.context, self.connection = appliance.client(), None

    def call(self, method, path, body=None, kind="application/json"):
        if self.connection is None:
            self.connection = http.client.HTTPSConnection(*API, context=self.context, timeout=60)
        text = None if body is None else json.dumps(body)
        self.connection.request(method, path, text, {"Content-Type": kind})
        answer = self.connection.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise LabError(f"{method} {path}: {answer.status}: {short(said.decode(errors='replace'))}")
        return json.loads(said)

    def create(self, group, plural, item, namespace=NAMESPACE):
        within = f"/namespaces/{namespace}" if namespace else ""
        return self.call("POST", f"/{'api' if '/' not in group else 'apis'}/{group}{within}/{plural}", item)

    def cluster(self):
        return self.call("GET", f"/apis/lcm.mirantis.com/v1alpha1/namespaces/{NAMESPACE}/lcmclusters/{CLUSTER}").get("status", {})

    def version(self):
        """Counts every write."""
        return int(self.call("GET", "/api/v1/namespaces?limit=1")["metadata"]["resourceVersion"])


def release(name, version, steps):
    script = f"echo > {steps}/$target_release-$$"
    items = [{"name": "step", "runner": "bash", "phase": "deploy", "version": version, "params": {"script": script}}]
    return {"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "ClusterRelease", "metadata": {"name": name},
            "spec": {"version": version, "lcmType": "byo", "machineTypes": {"control": items, "worker": items},
                     "allowedDistributions": [{"id": "debian/12", "version": "12", "default": True, "image": {"url": "slipway://none"}}]}}


def fill(client, steps):
    """A cluster of one manager and many workers, whose machines nobody installs."""
    client.create("v1", "namespaces", {"metadata": {"name": NAMESPACE}}, None)
    kaas, api = "kaas.mirantis.com/v1alpha1", "cluster.k8s.io/v1alpha1"
    for name, version in ((ONE, "1.0.0"), (TWO, "2.0.0")):
        client.create(kaas, "clusterreleases", release(name, version, steps), None)
    client.create(kaas, "kaasreleases", {
        "apiVersion": kaas, "kind": "KaaSRelease",
        "metadata": {"name": "bench", "labels": {"kaas.mirantis.com/active": "true"}}, "spec": {"version": "1.0.0", "supportedClusterReleases": [
            {"name": ONE, "version": "1.0.0", "availableUpgrades": [{"version": "2.0.0"}]}, {"name": TWO, "version": "2.0.0"}]}}, None)
    provider = {"apiVersion": "baremetal.k8s.io/v1alpha1"}
    client.create(api, "clusters", {
        "apiVersion": api, "kind": "Cluster", "metadata": {"name": CLUSTER, "labels": {"kaas.mirantis.com/provider": "baremetal"}},
        "spec": {"clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/16"]}, "pods": {"cidrBlocks": ["10.244.0.0/16"]}},
                 "providerSpec": {"value": provider | {"kind": "BaremetalClusterProviderSpec", "release": ONE, "publicKeys": [],
                                                       "loadBalancerHost": "10.20.0.5", "maxWorkerPrepareCount": AGENTS,
                                                       "maxWorkerUpgradeCount": AGENTS}}}})
    for number in range(AGENTS):
        labels = {"cluster.sigs.k8s.io/cluster-name": CLUSTER, "kaas.mirantis.com/provider": "baremetal"}
        if number == 0:
            labels["cluster.sigs.k8s.io/control-plane"] = "true"
        client.create(api, "machines", {"apiVersion": api, "kind": "Machine", "metadata": {"name": f"m-{number:03}", "labels": labels},
                                        "spec": {"providerSpec": {"value": provider | {"kind": "BareMetalMachineProviderSpec"}}}})


def files_of(secret):
    """The files of a node's user data by their paths; the agent's part is the last one."""
    data = base64.b64decode(secret["data"].get("userData") or secret["data"]["value"]).decode()
    parts = [part for part in email.message_from_string(data).walk() if not part.is_multipart()]
    text = parts[-1].get_payload(decode=True).decode() if len(parts) > 1 else data
    return {file["path"]: file["content"] for file in json.loads(text.split("\n", 1)[1])["write_files"]}


def room(number):
    """A network namespace with an address on the bridge; the process that keeps it."""
    keeper = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
    own = lambda: os.readlink("/proc/self/ns/net") != os.readlink(f"/proc/{keeper.pid}/ns/net")
    wait_for("a network namespace", own, 20, every=0.02)
    port, inside = f"room{number}", ["nsenter", "-t", keeper.pid, "-n", "ip"]
    for command in (["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", keeper.pid],
                    ["ip", "link", "set", port, "master", BRIDGE, "up"],
                    [*inside, "address", "add", f"172.22.0.{200 + number}/{PREFIX}", "dev", "eth0"], [*inside, "link", "set", "eth0", "up"]):
        check_output(command, deadline=20)
    return keeper


def start(folder, secrets, rooms):
    """An agent for each machine, with its user data's own configuration but for what a node has one of."""
    agents = []
    for number, (name, secret) in enumerate(secrets.items()):
        if number % IN_A_ROOM == 0:
            rooms.append(room(len(rooms) + 1))
        own = folder / name
        (own / "root/root/.ssh").mkdir(parents=True)
        (own / "root/etc").mkdir()
        (own / "root/etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
        files = files_of(secret)
        config = json.loads(files["/etc/slipway/node.json"]) | {
            "tokenFile": str(own / "token"), "stateFolder": str(own / "state"), "runFolder": str(own / "run"), "root": str(own / "root"),
            "rebootCommand": ["true"], "pauses": {"heartbeat": HEARTBEAT * 1000}}
        (own / "token").write_text(files["/etc/slipway/node.token"])
        (own / "token").chmod(0o600)
        (own / "node.json").write_text(json.dumps(config))
        # nsenter becomes the agent.
        agents.append(subprocess.Popen(["nsenter", "-t", str(rooms[-1].pid), "-n", binary(), "node", "--config", own / "node.json"],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(own / "log").open("wb")))
    return agents


def used(pid):
    """Seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid):
    """Megabytes of a process: resident, and of these its own."""
    text = Path(f"/proc/{pid}/status").read_text()
    return tuple(int(re.search(rf"{key}:\s+(\d+)", text)[1]) * 1024 / 1e6 for key in ("VmRSS", "RssAnon"))


def all_run(client, name):
    status = client.cluster()
    said = (status.get("readyNodes"), status.get("release"))
    return said == (AGENTS, name) or f"…{said[0]} nodes are ready, all have {said[1] or 'nothing'}"


def run(part, results):
    log = results / "agents-slipway.log"
    log.write_bytes(b"")
    with work_folder() as folder, Appliance(folder, log) as appliance:
        steps = folder / "steps"
        steps.mkdir()
        appliance.first_answer()
        client = Client(appliance)
        fill(client, steps)

        def told():
            items = client.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]
            found = {item["metadata"]["name"].removesuffix("-lcm-user-data"): item for item in items
                     if item["metadata"]["name"].endswith("-lcm-user-data")}
            return found if len(found) == AGENTS else f"…{len(found)} of {AGENTS} have user data"
        secrets = wait_for("user data", told, part.left())
        before = appliance.memory()["VmRSS"]
        rooms = []
        agents = start(folder / "nodes", secrets, rooms)
        try:
            measure(part, client, appliance, (agents, steps, before))
        finally:
            for process in agents + rooms:
                process.kill()
            for process in agents + rooms:
                process.wait()


def measure(part, client, appliance, given):
    agents, steps, before = given
    wait_for("all agents", lambda: all_run(client, ONE), part.left())
    time.sleep(REST)
    began, cpu, writes = time.monotonic(), used(appliance.process.pid), client.version()
    time.sleep(COUNTED)
    took, cpu, writes = time.monotonic() - began, used(appliance.process.pid) - cpu, client.version() - writes
    after = appliance.memory()
    part.add(Figure(f"{AGENTS} agents: processor time of the appliance for a status", "", f"{1000 * cpu / max(writes, 1):.2f} ms", "", None,
                    f"{writes:,} statuses in {took:.0f} s, one of each agent every {HEARTBEAT} s; nothing else is done meanwhile"))
    part.add(Figure(f"{AGENTS} agents: memory of the appliance", "", f"{after['VmRSS']:.1f} MB", "", None,
                    f"VmRSS, {before:.1f} MB before the agents came; highest {after['VmHWM']:.1f} MB"))
    sizes = sorted(memory(agent.pid) for agent in agents)
    middle, most = sizes[len(sizes) // 2], sizes[-1]
    part.add(Figure("memory of an agent at rest", f"{GOAL_AGENT_MB} MB", f"{middle[0]:.1f} MB", "", most[0] <= GOAL_AGENT_MB,
                    f"VmRSS, median; of it its own {middle[1]:.1f} MB; most {most[0]:.1f} MB"))
    path = f"/apis/cluster.k8s.io/v1alpha1/namespaces/{NAMESPACE}/clusters/{CLUSTER}"
    asked = time.time()
    client.call("PATCH", path, {"spec": {"providerSpec": {"value": {"release": TWO}}}}, "application/merge-patch+json")
    wait_for("a step of the new release", lambda: next(steps.glob(f"{TWO}-*"), None), part.left(), every=0.05)
    first = min(path.stat().st_mtime for path in steps.glob(f"{TWO}-*")) - asked
    part.add(Figure("new release to the first agent's step", "", f"{1000 * first:.0f} ms", "", None,
                    f"from before the patch of the Cluster to what the step writes; {AGENTS} agents"))
    wait_for("the new release everywhere", lambda: all_run(client, TWO), part.left(), every=0.5)
    part.add(Figure(f"new release to all {AGENTS} agents", "", f"{time.time() - asked:.1f} s", "", None,
                    "the manager first, then all workers at once"))
