"""Two machines that are off become a cluster by one command, with a checkout like kubespray's, real Ansible and SSH."""

import json

from lab import Machine, Slipway, TOP, check_output, prepared, say, short, wait_for
from playbooks import NAME, cluster, installation, mirrors, ordered, status_of
from wait import GiveUp

DEADLINE = 3000


def machines():
    return [Machine("rack-1"), Machine("rack-2", firmware="bios", bmc="ipmi", memory_mib=768)]


def ready(slipway, *names):
    """Whether the cluster is there, with these nodes. Each phase, state and task is said once."""
    said = []

    def look():
        status, line = status_of(slipway, said)
        if status.get("phase") == "Failed":
            log = ordered(slipway, "cluster", "log", NAME)
            raise GiveUp(f"{status.get('message')}: {short(status.get('run', {}), 1000)}\n{log[-4000:]}")
        are_ready = any(one["type"] == "NodesReady" and one["status"] == "True" for one in status.get("conditions", []))
        is_whole = status.get("phase") == "Ready" and set(names) == set(status.get("installed", [])) and are_ready
        return is_whole or line
    return look


def nodes(kubeconfig):
    """The addresses of the cluster's Nodes by their names."""
    said = check_output([prepared("KUBECTL"), "--kubeconfig", kubeconfig, "get", "--raw", "/api/v1/nodes"], deadline=60)
    return {node["metadata"]["name"]: node["status"]["addresses"][0]["address"] for node in json.loads(said)["items"]}


def check(slipway):
    """What the person at the appliance is told of the checkout and the mirrors."""
    command = ["sh", "-c", 'exec "$@" 2>&1', "sh", slipway.program, "kubespray", "check", "--config", slipway.config]
    return check_output(command, deadline=60)


def ran(slipway, playbook, number):
    """Whether the run of this number has succeeded; if not, where it is."""
    def look():
        status = slipway.get("provisioning", NAME)["status"]
        run = status["run"]
        if status["phase"] == "Failed":
            raise GiveUp(f"{playbook}: {short(run, 1000)}")
        return (run["number"], run["playbook"], run["state"]) == (number, playbook, "Succeeded") or f"…{status['phase']}: {run.get('task')}"
    return look


def run(rack):
    lines = installation(TOP / "tests/lab/kubespray", prepared("ANSIBLE"))
    slipway = Slipway(rack)
    slipway.config.write_text(slipway.config.read_text() + lines + mirrors("node-files"))
    slipway.build_ramdisk()
    slipway.start()
    program = rack.work / "files/dl.k8s.io/release/v1.35.4/bin/linux/amd64/kubelet"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    before = check(slipway)
    assert "kubespray.files" in before and "404" in before, f"nothing is published, and the check says: {before}"
    ordered(slipway, "image", "import", "node-files", rack.work / "files", "--format", "packages", "--publish")
    wait_for("the files to be published", lambda: "kubespray.files" not in check(slipway), 60)
    assert not any(rack.running(machine) for machine in rack.machines), "a machine is on"
    manifest = rack.work / "edge.json"
    objects = [item for machine in rack.machines for item in rack.manifests(machine)]
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects, cluster(rack, {"cpu": 1, "memory": "600Mi"})]}))
    say(f"$ slipway apply -f {manifest.name}\n{ordered(slipway, 'apply', '-f', manifest)}")
    wait_for(f"the cluster {NAME}", ready(slipway, "cp-1", "w-1"), 1200, every=2)
    print(ordered(slipway, "get", "provisionings"), flush=True)

    status = slipway.get("provisioning", NAME)["status"]
    hosts = {node["name"]: node["host"] for node in status["nodes"]}
    assert hosts == {"cp-1": "rack-1", "w-1": "rack-2"}, hosts
    kubeconfig = rack.work / "edge.kubeconfig"
    kubeconfig.write_text(ordered(slipway, "kubeconfig", "--cluster", NAME))
    addresses = nodes(kubeconfig)
    assert addresses == {"cp-1": slipway.address(rack.machine("rack-1")), "w-1": slipway.address(rack.machine("rack-2"))}, addresses
    say(f"both nodes are there: {addresses}")
    log = ordered(slipway, "cluster", "log", NAME, "--follow")
    assert "TASK [Download a program]" in log and "PLAY RECAP" in log, log[-2000:]

    ordered(slipway, "kubespray", "retry", NAME, "--playbook", "upgrade-cluster")
    wait_for("the upgrade", ran(slipway, "upgrade-cluster", 2), 600, every=2)
    assert "PLAY RECAP" in ordered(slipway, "kubespray", "log", "--provisioning", NAME, "--previous")
    say("every node was gone over by upgrade-cluster")

    slipway.patch(NAME, {"spec": {"workers": [{"cp-1": None}]}}, kind="provisioning")
    slipway.wait_state("rack-2", ["deprovisioning", "preparing", "available"], 300)
    assert list(nodes(kubeconfig)) == ["cp-1"], "w-1 is still in the cluster, and its host was let go"
    say("w-1 has left the cluster, and its host is free")

    slipway.wait_state("rack-2", "available", 300)
    both = {"w-2": {"mac-address": rack.machine("rack-2").mac, "memory": "600Mi"}}
    slipway.patch(NAME, {"spec": {"workers": [{"cp-1": None}, both]}}, kind="provisioning")
    wait_for(f"the cluster {NAME} with w-2", ready(slipway, "cp-1", "w-2"), 600, every=2)
    assert sorted(nodes(kubeconfig)) == ["cp-1", "w-2"], nodes(kubeconfig)
    assert slipway.get("provisioning", NAME)["status"]["run"]["playbook"] == "scale", "more was run than had to be"
    say("the machine is back as w-2")

    delete(slipway, rack)
    # By both, each of them: what a MAC address picks has what is asked for. One command, which ends when the cluster is there.
    mac = {machine.name: {"mac-address": machine.mac, "cpu": 1, "memory": "400Mi"} for machine in rack.machines}
    again = cluster(rack, mac["rack-2"])
    again["spec"]["masters"] = [{"cp-1": mac["rack-1"]}]
    manifest.write_text(json.dumps(again))
    done = check_output([slipway.program, "apply", "-f", manifest, "--wait", "--timeout", "20m", "--kubeconfig", slipway.kubeconfig], deadline=1260)
    say(f"$ slipway apply -f {manifest.name} --wait\n{done}")
    wait_for("its nodes to be ready", ready(slipway, "cp-1", "w-1"), 120)
    delete(slipway, rack)


def delete(slipway, rack):
    """Takes the cluster away; both machines are free after that, and nothing else is left."""
    slipway.kubectl("delete", "provisioning", NAME, "--wait=false")
    slipway.wait_gone(NAME, 180, kind="provisioning")
    slipway.wait_state("rack-1", ["deprovisioning", "preparing", "available"], 60)
    slipway.wait_states([machine.name for machine in rack.machines], "available", 400)
    left = [item["metadata"]["name"] for kind in ("secrets", "configmaps") for item in slipway.list(kind) if item["metadata"]["name"].startswith(NAME)]
    assert not left, f"left of the cluster: {left}"
    say("the cluster is gone, and both hosts are available")
