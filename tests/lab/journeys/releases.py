"""Three machines that are off become a cluster of a release by one apply, go to the next release by one patch, and leave.

Steps are plain scripts (`lcmType: byo`), so there is no Kubernetes in it; `releases_kubeadm` has that. Agents, their user data, cloud-init,
systemd and kubectl are real; the machines' firmware and BMCs are simulated, and their systems are Debians in namespaces.
"""

import hashlib
import time

from lab import say
from release_site import MANAGER, NAMES, OWN, WORKERS, ReleaseSite, channel, objects_of_cluster

DEADLINE = 600
GREETING = b"hello from the appliance\n"
DONE = "/var/lib/demo"


def release(version, address):
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


def machines():
    return []


def deploys(site, machine):
    return site.node_of(machine).run("cat", f"{DONE}/deploys").split("\n")[:-1]


def run(rack):
    with ReleaseSite(rack) as site:
        site.start()
        files = rack.work / "greetings"
        files.mkdir()
        (files / "greeting").write_bytes(GREETING)
        site.publish("greetings", files)
        address = site.slipway.kubeconfig.read_text().split("https://")[1].split(":")[0]
        one, two = release("1.0.0", address), release("1.1.0", address)
        kaas = {"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "KaaSRelease", "metadata": {"name": "site-1"}, "spec": {
            "version": "1.0.0", "supportedClusterReleases": [
                {"name": "demo-1-0-0", "version": "1.0.0", "availableUpgrades": [{"version": "1.1.0"}]}, {"name": "demo-1-1-0", "version": "1.1.0"}]}}
        site.run("release", "import", channel(rack.work / "channel", kaas, one, two))
        site.run("release", "activate", "site-1")
        site.add_machines()
        everything(site)


def everything(site):
    began = time.monotonic()
    site.apply_once(objects_of_cluster("demo-1-0-0", {"team": "a"}))
    site.wait("a host to have its system", site.has_system, 120)
    site.kill()
    site.wait("a cluster of release one", lambda: site.is_ready("demo-1-0-0"), 240)
    say(f"Ready on release one {time.monotonic() - began:.0f} s after the objects")
    for name in NAMES:
        site.check_agent(name)
        address = site.node_of(MANAGER).address()
        role = "first" if name == MANAGER else "worker"
        assert deploys(site, name) == [f"{role} demo-1-0-0 {address}"], deploys(site, name)
        status = site.slipway.get("lcmmachine", name)["status"]["stateItemStatuses"]
        assert status["deploy"]["result"] == {"version": "1.0.0"}, status
        assert site.node_of(name).run("cat", f"{DONE}/labels").strip() == "team=a"
    own = site.node_of(MANAGER).run("cat", OWN)
    assert own == "mineran\n", f"the user's own user data was not carried out beside the agent's: {own!r}"

    began = time.monotonic()
    available = site.cluster()["status"]["providerStatus"]["releaseRefs"]["available"]
    assert [one["name"] for one in available] == ["demo-1-1-0"], available
    boots = {name: site.node_of(name).run("cat", "/etc/machine-id") for name in NAMES}
    site.upgrade("demo-1-1-0")
    site.wait("a cluster of release two", lambda: site.is_ready("demo-1-1-0"), 240)
    say(f"Ready on release two {time.monotonic() - began:.0f} s after the patch")
    site.check_order("demo-1-1-0")
    for name in NAMES:
        assert [line.split()[1] for line in deploys(site, name)] == ["demo-1-0-0", "demo-1-1-0"], deploys(site, name)
        assert site.node_of(name).run("cat", "/etc/machine-id") == boots[name], f"{name} was installed anew"

    site.delete_machine(WORKERS[1])
    site.wait("the rest of the cluster", lambda: site.is_ready("demo-1-1-0", NAMES[:2]), 60)
    print(site.slipway.kubectl("get", "lcmmachines,clusters.cluster.k8s.io,machines.cluster.k8s.io"), flush=True)
    site.delete_cluster(NAMES[:2])
