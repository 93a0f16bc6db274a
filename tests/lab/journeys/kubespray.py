"""Two machines that are off become a cluster by one command, with a checkout like kubespray's, real Ansible and SSH."""

import json
import shutil
from pathlib import Path

from lab import Machine, Slipway, TOP, check_output, prepared, say, short, wait_for
from wait import GiveUp

DEADLINE = 2100
NAME = "edge"
# What an operator's own could not be: below folders that others may write it would be refused.
OPT = Path("/run/opt")


def machines():
    return [Machine("rack-1"), Machine("rack-2", firmware="bios", bmc="ipmi", memory_mib=768)]


def installation():
    """The checkout and its virtual environment, where only root may write. Lines of the configuration."""
    OPT.mkdir()
    check_output(["mount", "-t", "tmpfs", "-o", "mode=755,size=512m", "tmpfs", OPT], deadline=20)
    shutil.copytree(TOP / "tests/lab/kubespray", OPT / "kubespray")
    shutil.copytree(prepared("ANSIBLE"), OPT / "venv", symlinks=True)
    check_output(["chown", "-R", "0:0", OPT], deadline=60)
    check_output(["chmod", "-R", "go-w", OPT], deadline=60)
    return f'[kubespray]\npath = "{OPT}/kubespray"\nansible = "{OPT}/venv"\n'


def cluster(rack):
    """One machine by its MAC address, the other one by what it has: only that one has as much memory."""
    image = rack.image_spec()
    return {"apiVersion": "bpa.akraino.org/v1alpha1", "kind": "Provisioning", "metadata": {"name": NAME, "namespace": "default"},
            "spec": {"masters": [{"cp-1": {"mac-address": rack.machine("rack-1").mac}}],
                     "workers": [{"cp-1": None}, {"w-1": {"cpu": 1, "memory": "600Mi"}}], "image": image}}


def ordered(slipway, *arguments):
    """What a person at a desk is answered by a command."""
    return check_output([slipway.program, *arguments, "--kubeconfig", slipway.kubeconfig], deadline=60)


def ready(slipway, *names):
    """Whether the cluster is there, with these nodes. Each phase, state and task is said once."""
    said = []

    def look():
        status = slipway.get("provisioning", NAME).get("status", {})
        phase, run = status.get("phase", "new"), status.get("run", {})
        if phase == "Failed":
            log = ordered(slipway, "kubespray", "log", "--provisioning", NAME)
            raise GiveUp(f"{status.get('message')}: {short(run, 1000)}\n{log[-4000:]}")
        line = ", ".join([phase, *(f"{node['name']} {node.get('state', '')}" for node in status.get("nodes", []))])
        task = f": {run['task']}" if phase == "Installing" and run.get("task") else ""
        if line + task not in said:
            said.append(line + task)
            say(line + task)
        are_ready = any(one["type"] == "NodesReady" and one["status"] == "True" for one in status.get("conditions", []))
        is_whole = phase == "Ready" and set(names) == set(status.get("installed", [])) and are_ready
        return is_whole or f"…{line}{task}: {status.get('message', '')}"
    return look


def nodes(kubeconfig):
    """The addresses of the cluster's Nodes by their names."""
    said = check_output([prepared("KUBECTL"), "--kubeconfig", kubeconfig, "get", "--raw", "/api/v1/nodes"], deadline=60)
    return {node["metadata"]["name"]: node["status"]["addresses"][0]["address"] for node in json.loads(said)["items"]}


def run(rack):
    lines = installation()
    slipway = Slipway(rack)
    slipway.config.write_text(slipway.config.read_text() + lines)
    slipway.build_ramdisk()
    slipway.start()
    assert not any(rack.running(machine) for machine in rack.machines), "a machine is on"
    manifest = rack.work / "edge.json"
    objects = [item for machine in rack.machines for item in rack.manifests(machine)]
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects, cluster(rack)]}))
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

    slipway.kubectl("delete", "provisioning", NAME, "--wait=false")
    slipway.wait_gone(NAME, 180, kind="provisioning")
    slipway.wait_state("rack-1", ["deprovisioning", "preparing", "available"], 60)
    slipway.wait_states([machine.name for machine in rack.machines], "available", 400)
    left = [item["metadata"]["name"] for kind in ("secrets", "configmaps") for item in slipway.list(kind) if item["metadata"]["name"].startswith(NAME)]
    assert not left, f"left of the cluster: {left}"
    say("the cluster is gone, and both hosts are available")
