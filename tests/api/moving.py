"""A cluster is handed from one appliance to another and back by the released `clusterctl move`, and no machine notices.

    python3 tests/api/moving.py [--program NAME=FILE ...] [--git MODULE=FOLDER ...] [--folder FOLDER]

The first appliance acts by its own controllers. On the second one upstream's managers do: those of Cluster API, and those of Metal3
where they are given as for `managers.py`, of which rack and nodes are.
"""

import argparse
import json
import os
import re
import tempfile
from pathlib import Path

import managers
from managers import BEFORE, NAME, NAMESPACE, Life, Rack, enter, released
from played import Cluster
from servers import LabError, binary, check_output, fail, free_port, load_config, programs, say, wait_for


class Desk(Rack):
    """An appliance without machines of its own. It reaches the controllers of those that another one has started."""

    def start(self):
        self.config, port = self.folder / "slipway.toml", free_port()
        self.config.write_text(
            f'data_dir = "{self.folder / "data"}"\n[api]\nlisten = "127.0.0.1:{port}"\n[bmc]\nallow = ["127.0.0.0/8"]\n'
            f'[boot]\nlisten = "127.0.0.1:{free_port()}"\ntftp = "127.0.0.1:{free_port()}"\n{self.tables()}[image]\nallow = ["127.0.0.0/8"]\n')
        self.spawn("slipway", [binary(), "serve", "--config", self.config])

        def answers():
            self.kubeconfig.write_text(check_output([binary(), "kubeconfig", "--config", self.config], deadline=20))
            self.kubeconfig.write_text(json.dumps(load_config(self.kubeconfig)))
            return self.client().request("GET", "/readyz")[0] == 200
        self.ready("slipway", "the second appliance", answers, 120)

    def process(self):
        return self.processes["slipway"].pid


def move(source, target, clusterctl):
    """Runs clusterctl as its users do."""
    home = source.folder / "home"
    home.mkdir(exist_ok=True)
    # It looks for news of itself on the network otherwise.
    settings = os.environ | {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "CLUSTERCTL_DISABLE_VERSIONCHECK": "true"}
    said = check_output([clusterctl, "move", "--kubeconfig", source.kubeconfig, "--to-kubeconfig", target.kubeconfig, "--namespace", NAMESPACE, "-v", "1"],
                        deadline=300, env=settings)
    (source.folder / "move.log").write_text(said)


def used(rack):
    """The hosts of the cluster, by name, with what was installed and when."""
    found = {}
    for host in rack.list("baremetalhosts"):
        if host["spec"].get("consumerRef"):
            status = host.get("status", {})
            found[host["metadata"]["name"]] = (status.get("provisioning", {}).get("state"), status.get("poweredOn"),
                                               status.get("operationHistory", {}).get("provision", {}).get("end"))
    return found


def switched(rack, hosts):
    """Lines of the metrics that count power changes of these hosts."""
    _, _, text = rack.client().request("GET", "/metrics")
    return [line for line in text.decode().splitlines() if line.startswith("metal3_operation_power_change")
            and re.search("|".join(f'"{host}"' for host in hosts), line)]


def names(rack):
    """What a cluster consists of, by kind."""
    kinds = ["machinedeployments", "machinesets", "machines", "kubeadmcontrolplanes", "kubeadmconfigs", "metal3clusters", "metal3machines",
             "metal3datas", "metal3dataclaims", "ippools", "ipclaims", "ipaddresses", "clusters"]
    return {kind: sorted(item["metadata"]["name"] for item in rack.list(kind)) for kind in kinds}


def handed(life, source, target, clusterctl):
    """Moves the cluster, and looks that it is the same there and that nobody touched its machines."""
    before, installed = names(source), used(source)
    if set(state for state, _, _ in installed.values()) != {"provisioned"}:
        raise LabError(f"not all hosts are provisioned: {installed}")
    move(source, target, clusterctl)
    left = {kind: found for kind, found in names(source).items() if found}
    if left or used(source):
        raise LabError(f"the source still has {left} and {sorted(used(source))}")
    # A host that is paused has its status only in an annotation.
    wait_for("the hosts to be known on the other side", lambda: used(target) == installed or f"…{used(target)}", 120)
    life.rack = life.cluster.rack = target
    life.stage(f"moved to {target.folder.name}", lambda: life.ready(1, 1, BEFORE))
    for what, was, now in (("objects", before, names(target)), ("hosts", installed, used(target))):
        if was != now:
            raise LabError(f"other {what} after the move: {was} before, {now} now")
    if touched := switched(target, installed):
        raise LabError(f"machines of the cluster were switched: {touched}")
    if life.cluster.faults:
        raise LabError("; ".join(life.cluster.faults))
    say(f"{len(installed)} machines run on, {sum(len(found) for found in before.values())} objects are the same")


def live(options, found):
    clusterctl = programs.program("clusterctl")
    version_of = lambda host: re.search(r"node-(v[\d.]+)\.raw", host["status"]["provisioning"]["image"]["url"])[1]
    with Rack(options.folder / "first", []) as first, Desk(options.folder / "second", released(found)) as second, \
            Cluster(options.folder / "cluster", first, version_of) as cluster:
        second.have_act(found)
        life = Life(first, cluster)
        life.create()
        handed(life, first, second, clusterctl)
        handed(life, second, first, clusterctl)
        # The first appliance acts again: a machine more, and then none.
        life.until("free hosts", lambda: first.available() is True or len(used(first)) + free(first) == managers.MACHINES, 300)
        life.rack.merge("machinedeployments", f"{NAME}-workers", {"spec": {"replicas": 2}})
        life.stage("scale", lambda: life.ready(1, 2, BEFORE))
        life.delete()


def free(rack):
    states = [host.get("status", {}).get("provisioning", {}).get("state") for host in rack.list("baremetalhosts")]
    return states.count("available")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--git", action="append", default=[], metavar="MODULE=FOLDER")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.folder = options.folder or Path(folder)
        options.folder.mkdir(parents=True, exist_ok=True)
        if not os.environ.get(managers.INSIDE):
            programs.program("clusterctl")
        live(options, enter(options))


if __name__ == "__main__":
    try:
        main()
    except LabError as error:
        fail(error)
