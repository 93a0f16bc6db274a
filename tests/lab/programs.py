"""Kubernetes' own programs and Cluster API's, built once from the Go module proxy and kept in the user's cache folder.

    python3 tests/lab/programs.py [NAME ...]          builds what is not kept (all, or these); prints a path for each
    python3 tests/lab/programs.py --kept NAME ...     builds nothing: fails when one is not kept

A program is kept under a hash of its recipe, so it is built again when the recipe is another one, and only then. All of
them take about fifteen minutes of processor time on a cold cache, and need Go and, for `pause`, gcc.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import tools
from wait import LabError, check_output, say

# The Kubernetes that Slipway's /version claims to be like, and what its kubeadm wants beside it.
KUBERNETES = "1.34.4"
ETCD = "3.6.5"
COREDNS = "1.12.1"
PAUSE = "3.10.1"
# The Cluster API whose definitions tests/api/definitions.py compares.
CLUSTER_API = "1.14.2"
HELM = "3.19.5"
KEPT = tools.CACHE / "kubernetes"
DEADLINE = 3600
# What is the same in every build, so that one made on another day is the same program.
COMMIT, DATE = "0" * 40, "2026-01-01T00:00:00Z"
# Those that kubeadm's Corefile names. The others bring three clouds' libraries, and most of the time of the build.
COREDNS_PLUGINS = ["cache", "errors", "forward", "health", "kubernetes", "loadbalance", "loop", "metrics", "ready", "reload"]
COREDNS_MAIN = ("package main\n\nimport (\n\t\"github.com/coredns/coredns/coremain\"\n"
                + "".join(f"\t_ \"github.com/coredns/coredns/plugin/{name}\"\n" for name in COREDNS_PLUGINS)
                + ")\n\nfunc main() { coremain.Run() }\n")
# Answers as the kubelets of nodes that are only played.
PLAYED_KUBELET = Path(__file__).resolve().parent / "kubelet.go"


@dataclass(frozen=True)
class Recipe:
    """How a program is made: of a Go module's package, or of a `main` of ours, or of one file in C."""

    name: str
    version: str
    module: str
    package: str = ""
    main: str = ""
    c_file: str = ""
    # Whether the module's go.mod points to folders of its repository, which are published as modules of their own.
    staged: bool = False
    flags: str = "-s -w"

    @property
    def path(self):
        """Where the program is kept, or is to be."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]
        return KEPT / f"{self.name}-{self.version}-{digest}" / self.name


def kubernetes(name, version):
    """A program of Kubernetes itself, with its version in it: kubeadm and API servers compare theirs."""
    major, minor, _ = version.split(".")
    stamp = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean", "gitCommit": COMMIT, "buildDate": DATE}
    flags = [f"-X {package}.{key}={value}" for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
             for key, value in stamp.items()]
    return Recipe(name, version, "k8s.io/kubernetes", f"k8s.io/kubernetes/cmd/{name}", staged=True, flags=" ".join(["-s -w", *flags]))


def cluster_api(name, package):
    """A manager of Cluster API, under the name of its image, with its version in it."""
    return Recipe(name, CLUSTER_API, "sigs.k8s.io/cluster-api", f"sigs.k8s.io/cluster-api/{package}", staged=True,
                  flags=f"-s -w -X sigs.k8s.io/cluster-api/version.gitVersion=v{CLUSTER_API}")


def recipes(version=KUBERNETES):
    """Every program by its name. `version` is that of Kubernetes; all others have theirs whatever it is."""
    names = ("kubeadm", "kubelet", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
    every = [*(kubernetes(name, version) for name in names),
             Recipe("etcd", ETCD, "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
             Recipe("coredns", COREDNS, "github.com/coredns/coredns", main=COREDNS_MAIN),
             # Its source is in Kubernetes' module of any version that names it.
             Recipe("pause", PAUSE, f"k8s.io/kubernetes@v{KUBERNETES}", c_file="build/pause/linux/pause.c"),
             Recipe("played-kubelet", f"0.{KUBERNETES.removeprefix('1.')}", "k8s.io/kubelet", main=PLAYED_KUBELET.read_text()),
             Recipe("helm", HELM, "helm.sh/helm/v3", "helm.sh/helm/v3/cmd/helm",
                    flags=f"-s -w -X helm.sh/helm/v3/internal/version.version=v{HELM}"),
             cluster_api("clusterctl", "cmd/clusterctl"),
             cluster_api("cluster-api-controller", "core"),
             cluster_api("kubeadm-bootstrap-controller", "bootstrap/kubeadm"),
             cluster_api("kubeadm-control-plane-controller", "controlplane/kubeadm")]
    return {recipe.name: recipe for recipe in every}


def wanted(names, version):
    """The recipes of programs by their names, of all of them when none is named."""
    known = recipes(version)
    for name in names:
        if name not in known:
            raise LabError(f"there is no recipe for {name!r}; there are: {', '.join(known)}")
    return [known[name] for name in names or known]


def programs(*names, version=KUBERNETES):
    """The paths of programs by their names, all of them when none is named; builds those that are not kept."""
    asked = wanted(names, version)
    if not all(recipe.path.exists() for recipe in asked):
        with tools.locked("kubernetes"):
            missing = [recipe for recipe in asked if not recipe.path.exists()]
            for number, recipe in enumerate(missing, 1):
                build(recipe, f"{number} of {len(missing)}")
    return {recipe.name: tools.used(recipe.path.parent) / recipe.name for recipe in asked}


def program(name, version=KUBERNETES):
    """The path of one program; builds it when it is not kept."""
    return programs(name, version=version)[name]


def build(recipe, count):
    """Builds one program and moves it to where it is kept."""
    say(f"building {recipe.name} {recipe.version} ({count})")
    began = time.monotonic()
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT, prefix=".build-") as folder:
        out = Path(folder, "out", recipe.name)
        out.parent.mkdir()
        compile_c(recipe, out) if recipe.c_file else compile_go(recipe, Path(folder), out)
        tools.forget_unused(f"kubernetes/{recipe.name}-*")
        out.parent.rename(recipe.path.parent)
    say(f"  {recipe.name}: {recipe.path.stat().st_size / 1e6:.0f} MB in {time.monotonic() - began:.0f} s")


def compile_c(recipe, out):
    source = Path(module(recipe.module)["Dir"], recipe.c_file)
    check_output(["gcc", "-Os", "-Wall", "-static", "-s", f"-DVERSION={recipe.version}", "-o", out, source], deadline=120)


def compile_go(recipe, folder, out):
    """Builds without C and without what only a debugger needs, in a module that is thrown away."""
    replace = {}
    if recipe.staged:
        text = Path(module(f"{recipe.module}@v{recipe.version}")["GoMod"]).read_text()
        # Kubernetes' are published as v0.34.4 where it is v1.34.4, those of others under one version.
        staging = f"v0.{recipe.version.removeprefix('1.')}"
        replace = {name: staging if folder.startswith("staging/") else f"v{recipe.version}"
                   for name, folder in re.findall(r"(?m)^(?:replace |\s)(\S+) => \./(\S+)$", text)}
        if not replace:
            raise LabError(f"{recipe.module} {recipe.version} names no modules that lie in its repository: the recipe is wrong")
    (folder / "go.mod").write_text(f"module slipway.dev/peer\n\ngo 1.24.0\n\nrequire {recipe.module} v{recipe.version}\n"
                                   + "".join(f"replace {name} => {name} {at}\n" for name, at in replace.items()))
    if recipe.main:
        (folder / "main.go").write_text(recipe.main)
    go("build", "-p", "2", "-trimpath", "-ldflags", recipe.flags, "-o", out, recipe.package or ".", cwd=folder)


def module(at):
    """What Go says of a module at a version, once it is downloaded."""
    return json.loads(go("mod", "download", "-json", at, cwd="/"))


def go(*words, cwd):
    """A command of Go's; a network that fails gets two more tries."""
    settings = os.environ | {"GOFLAGS": "-mod=mod -buildvcs=false", "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    for attempt in (1, 2, 3):
        try:
            return check_output(["nice", "-n", "10", tools.go(), *words], deadline=DEADLINE, cwd=cwd, env=settings)
        except LabError as error:
            if attempt == 3 or not re.search(r"timeout|connection reset|TLS handshake|EOF|status code 5|502|503", str(error)):
                raise


def kept(*names):
    """The same paths; a LabError when one would have to be built."""
    missing = [recipe.name for recipe in wanted(names, KUBERNETES) if not recipe.path.exists()]
    if missing:
        raise LabError(f"not built yet: `python3 tests/lab/programs.py {' '.join(missing)}` does it")
    return programs(*names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", action="store_true", help="build nothing")
    parser.add_argument("name", nargs="*")
    options = parser.parse_args()
    with redirect_stdout(sys.stderr):
        paths = (kept if options.kept else programs)(*options.name)
    print("\n".join(map(str, paths.values())))


if __name__ == "__main__":
    try:
        main()
    except LabError as failure:
        print(f"failed: {failure}", file=sys.stderr)
        sys.exit(1)
