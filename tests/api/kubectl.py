"""Runs the script of `kubectl_cases.py` with an older and a newer kubectl.

    python3 tests/api/kubectl.py check [GROUP]     against Slipway, compared with what was recorded; up to a group only
    python3 tests/api/kubectl.py check --accept    the same; records the answers that may differ (accepted.toml)
    python3 tests/api/kubectl.py record            against a real kube-apiserver, into golden/
"""

import difflib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import servers
import programs
import tools
from accepted import Accepted
from kubectl_cases import SCRIPT
from manifests import FILES
from servers import LabError, check_output, fail, say
from transcript import Script, split

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
# Four minor versions of Kubernetes apart.
VERSIONS = (32, 36)


def golden(minor, group):
    return GOLDEN / f"kubectl-1.{minor}" / f"{group}.txt"


def prepare(script, server):
    """What the script finds beside the manifests: a key pair, and a kubeconfig of nobody."""
    check_output(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                  "-keyout", "tls.key", "-out", "tls.crt", "-subj", "/CN=example"], deadline=30, cwd=script.folder)
    cluster = servers.load_config(server.kubeconfig)["clusters"][0]["cluster"]
    nobody = {"apiVersion": "v1", "kind": "Config", "current-context": "x", "clusters": [{"name": "judge", "cluster": cluster}],
              "contexts": [{"name": "x", "context": {"cluster": "judge", "user": "u"}}], "users": [{"name": "u", "user": {}}]}
    (script.folder / "anonymous.kubeconfig").write_text(servers.json.dumps(nobody))


def transcripts(server, minor, folder, groups=None):
    """The transcript of each group, as a list of texts."""
    script = Script(tools.clients(minor) / "kubectl", server, folder / f"home-1.{minor}", FILES)
    prepare(script, server)
    out = {}
    for group, cases in SCRIPT.items():
        out[group] = script.run(cases)
        if group == groups:
            break
    return out


def both(run):
    """`run` for each version at the same time: much of it is waiting. Its results in the order of VERSIONS."""
    with ThreadPoolExecutor(len(VERSIONS)) as pool:
        return list(pool.map(run, VERSIONS))


def record():
    def one(minor):
        with tempfile.TemporaryDirectory() as folder, servers.Peer(Path(folder, "peer")) as peer:
            servers.install_kinds(peer)
            return transcripts(peer, minor, Path(folder))
    programs.programs(*servers.PROGRAMS)
    for minor, groups in zip(VERSIONS, both(one)):
        for group, texts in groups.items():
            path = golden(minor, group)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(texts))
    say(f"{sum(map(len, SCRIPT.values()))} cases recorded with kubectl 1.{' and 1.'.join(map(str, VERSIONS))}")


def difference(want, have):
    """What differs, for a person."""
    lines = difflib.unified_diff(want.splitlines()[1:], have.splitlines()[1:], lineterm="", n=2)
    return "\n".join([have.splitlines()[0], *(f"    {line}" for line in list(lines)[2:])])


def check(accept=False, last=None):
    def one(minor):
        with tempfile.TemporaryDirectory() as folder, servers.Slipway(Path(folder, "slipway")) as slipway:
            return transcripts(slipway, minor, Path(folder), last)
    allowed, failed = Accepted("kubectl", accept), 0
    for minor, groups in zip(VERSIONS, both(one)):
        pairs = [(group, *pair) for group, texts in groups.items()
                 for pair in zip(split(golden(minor, group).read_text()), texts, strict=True)]
        for want, have in allowed.check(golden(minor, "slipway"), [pair[1:] for pair in pairs]):
            failed += 1
            print(f"── kubectl 1.{minor}\n{difference(want, have)}")
        say(f"kubectl 1.{minor}: {len(pairs)} invocations")
    failed += allowed.unused() if last is None else 0
    if failed:
        raise LabError(f"{failed} differ from a real kube-apiserver")


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["record"]:
            record()
        elif sys.argv[1:] == ["check", "--accept"]:
            check(accept=True)
        elif sys.argv[1:2] == ["check"] and len(sys.argv) <= 3 and set(sys.argv[2:]) <= set(SCRIPT):
            check(last=next(iter(sys.argv[2:]), None))
        else:
            print(__doc__.strip(), file=sys.stderr)
            sys.exit(2)
    except LabError as error:
        fail(error)
