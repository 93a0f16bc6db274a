"""Container images of Kubernetes' programs, as OCI archives, under the names that kubeadm asks for.

    python3 tests/lab/oci.py        makes those that are not kept; prints name and path of each

An archive is a tar of OCI's image layout with one image of one layer. containerd imports it, and a registry serves it.
"""

import gzip
import hashlib
import inspect
import io
import json
import sys
import tarfile
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import node_root
import programs
import tools
from wait import LabError, check_output, say

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
SEARCHED = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# kubeadm's manifests name the programs of the others themselves.
ENTRYPOINTS = {"coredns": "/coredns", "pause": "/pause"}
PASSWD = "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n"


def names(version=programs.KUBERNETES):
    """The images' names with their tags, by program: what kubeadm of this version says it needs."""
    said = check_output([programs.program("kubeadm", version), "config", "images", "list", "--kubernetes-version", f"v{version}"], deadline=60)
    return {line.rpartition(":")[0].rsplit("/", 1)[-1]: line for line in said.split()}


def archives(version=programs.KUBERNETES):
    """The path of an archive for each image's name; makes those that are not kept."""
    wanted, built = names(version), programs.recipes(version)
    if set(wanted) - set(built):
        raise LabError(f"kubeadm {version} wants images that nobody builds: {', '.join(sorted(set(wanted) - set(built)))}")
    for program, name in wanted.items():
        if built[program].version not in name:
            raise LabError(f"kubeadm {version} wants {name}, and {program} {built[program].version} is what is built: see programs.py")
    paths = programs.programs(*wanted, version=version)
    proxy = node_root.proxy_tree()
    # All that the content of an image depends on.
    recipe = "".join([*(f"{name}={path}\n" for name, path in paths.items()), str(proxy), *map(inspect.getsource, (layer, archive))])
    target = programs.KEPT / f"images-{version}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with tools.locked("kubernetes-images"):
        if not target.exists():
            tools.forget_unused("kubernetes/images-*")
            with tempfile.TemporaryDirectory(dir=programs.KEPT, prefix=".images-") as folder:
                made = Path(folder, "images")
                made.mkdir()
                for program, name in wanted.items():
                    archive(made / f"{program}.tar", name, program, paths[program], proxy if program == "kube-proxy" else None)
                    say(f"packed {name}: {(made / f'{program}.tar').stat().st_size / 1e6:.0f} MB")
                made.rename(target)
    tools.used(target)
    return {name: target / f"{program}.tar" for program, name in wanted.items()}


def layer(program, path, tree):
    """A layer's tar: the few files that programs look for, the program, and what it calls."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        def add(name, data=None, mode=0o755):
            info = tarfile.TarInfo(name)
            info.mode, info.type = mode, tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            info.size = len(data or b"")
            tar.addfile(info, None if data is None else io.BytesIO(data))

        def nobodys(info):
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            return info
        for name in ("etc", "run", "usr", "usr/local", "usr/local/bin", "var"):
            add(name)
        add("tmp", mode=0o1777)
        add("etc/passwd", PASSWD.encode(), 0o644)
        add("etc/group", b"root:x:0:\nnobody:x:65534:\n", 0o644)
        add("etc/nsswitch.conf", b"hosts: files dns\n", 0o644)
        add(ENTRYPOINTS.get(program, f"usr/local/bin/{program}").lstrip("/"), path.read_bytes())
        for entry in sorted(tree.iterdir()) if tree else []:
            tar.add(entry, entry.name, filter=nobodys)
    return out.getvalue()


def archive(target, name, program, path, tree):
    """Writes an image's archive. The same programs give the same bytes."""
    plain = layer(program, path, tree)
    packed = gzip.compress(plain, 6, mtime=0)
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest(plain)]},
              "config": {"Env": [SEARCHED], "WorkingDir": "/"} | ({"Entrypoint": [ENTRYPOINTS[program]]} if program in ENTRYPOINTS else {})}
    config = json.dumps(config).encode()
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": described(CONFIG, config), "layers": [described(LAYER, packed)]}).encode()
    of_image = described(MANIFEST, manifest) | {
        "platform": {"architecture": "amd64", "os": "linux"},
        # The first is containerd's name of an image, the second OCI's of a tag.
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}}
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [of_image]}).encode()
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        for where, data in (("oci-layout", b'{"imageLayoutVersion": "1.0.0"}'), ("index.json", index),
                            *((f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob) for blob in (config, manifest, packed))):
            info = tarfile.TarInfo(where)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def described(media_type, data):
    """A descriptor, as OCI's documents name each other by."""
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


if __name__ == "__main__":
    try:
        with redirect_stdout(sys.stderr):
            found = archives()
        print("\n".join(f"{name} {path}" for name, path in found.items()))
    except LabError as failure:
        print(f"failed: {failure}", file=sys.stderr)
        sys.exit(1)
