"""kubespray itself, on two machines that are off: as far as it goes where a node reaches nobody but the appliance, which has its registry and
folder of files, and nothing in them. Its own checks of the machines pass, and what it wants first of all is asked of the appliance.
"""

import json
import re

from lab import Machine, Slipway, prepared, say, wait_for
from playbooks import NAME, cluster, installation, mirrors, ordered, status_of
from wait import GiveUp

DEADLINE = 3000
FOLDER = "kubespray-files"


def machines():
    # As much memory as kubespray's checks want of a master, and of a worker.
    return [Machine("rack-1", memory_mib=2048), Machine("rack-2", firmware="bios", bmc="ipmi", memory_mib=1536)]


def tasks(log):
    """What each task came to on each host, by `ok`, `changed`, `skipping`, `fatal` and the like, in the order that they ran."""
    found = []
    for line in log.splitlines():
        if title := re.match(r"(?:TASK|RUNNING HANDLER) \[(.*?)\] \*", line):
            found.append((title[1], {}))
        elif (said := re.match(r"(ok|changed|skipping|fatal|failed|unreachable): \[([a-z0-9-]+)", line)) and found:
            # Of a loop the worst is said last.
            found[-1][1][said[2]] = said[1]
    return found


def run(rack):
    lines = installation(prepared("KUBESPRAY"), prepared("ANSIBLE")) + mirrors(FOLDER)
    slipway = Slipway(rack)
    slipway.config.write_text(slipway.config.read_text() + lines)
    slipway.build_ramdisk()
    slipway.start()
    manifest = rack.work / "edge.json"
    objects = [item for machine in rack.machines for item in rack.manifests(machine)]
    items = [*objects, cluster(rack, {"cpu": 2, "memory": "1Gi"})]
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    say(f"$ slipway apply -f {manifest.name}\n{ordered(slipway, 'apply', '-f', manifest)}")
    said = []

    def over():
        status, line = status_of(slipway, said)
        if status.get("phase") in ("Invalid", "Ready"):
            raise GiveUp(line)
        return status.get("phase") == "Failed" and status or line

    status = wait_for("kubespray to go as far as it can", over, 2700, every=2)
    log = ordered(slipway, "cluster", "log", NAME)
    (rack.logs / "kubespray.log").write_text(log)
    done = tasks(log)
    checks = [(name.removeprefix("kubernetes/preinstall : "), hosts) for name, hosts in done if name.startswith("kubernetes/preinstall : Stop if")]
    for name, hosts in checks:
        assert set(hosts.values()) == {"ok"} and hosts.keys() <= {"cp-1", "w-1"}, f"{name}: {hosts}"
        say(f"{name}: {', '.join(f'{host} is well' for host in sorted(hosts))}")
    for wanted in ("memory is too small", "ip var does not match", "access_ip is not pingable", "bad hostname"):
        both = {host for name, hosts in checks if wanted in name for host in hosts}
        assert both == {"cp-1", "w-1"}, f"kubespray's check {wanted!r} was made of {both}"
    # Nobody else was asked, and it has nothing.
    failure = status["run"]["failure"]
    assert "Download" in failure["task"], f"kubespray came to another end: {failure}"
    metrics = slipway.kubectl("get", "--raw", "/metrics")
    assert re.search(r'kind="packages",code="4xx"\} [1-9]', metrics), "the appliance was not asked for what is to be downloaded"
    say(f"{len(done)} tasks of kubespray ran, to {failure['task']!r}, which asked the appliance")
