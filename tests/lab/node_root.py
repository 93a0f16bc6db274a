"""The file tree that nodes in namespaces start from: a Debian 12 with what a Kubernetes node needs, and cloud-init.

It has no kernel and no boot loader. Kubernetes' own programs are not in it: `nodes.py` lays them over it.
"""

import hashlib
import importlib.util
import inspect
import json
import shutil
import tempfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

import tools
from wait import LabError, check_output, say

SUITE = "bookworm"
PACKAGES = """
    systemd-sysv udev dbus libpam-systemd systemd-resolved
    cloud-init python3-yaml openssh-server sudo ca-certificates iproute2 iputils-ping procps less kmod curl jq
    containerd runc containernetworking-plugins conntrack socat ethtool iptables nftables ebtables keepalived
""".split()
# What kube-proxy calls, and what those need.
PROXY_PACKAGES = "iptables nftables conntrack ipset kmod dash".split()
UNREAD = ["--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
          "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright"]


def debian_image():
    """The Debian image's recipe as a module: it knows this machine's apt sources."""
    loader = SourceFileLoader("debian_image", str(tools.TOP / "images/debian-12/build"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def tree(name, what, variant, packages, finish):
    """A tree of packages in the cache folder, made when there is none of this recipe. `finish` is called with a new one."""
    recipe = json.dumps([SUITE, variant, sorted(packages), UNREAD, inspect.getsource(finish)])
    target = tools.CACHE / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with tools.locked(name):
        if not target.exists():
            say(f"making {what} (mmdebstrap)")
            image = debian_image()
            with tempfile.TemporaryDirectory(dir=tools.CACHE, prefix=f".{name}-") as folder:
                made = Path(folder, "root")
                try:
                    sources = image.sources()
                except image.BuildError as error:
                    raise LabError(str(error)) from error
                tools.download(["nice", "mmdebstrap", "--quiet", "--mode=root", f"--variant={variant}", "--format=directory", "--architectures=amd64",
                                "--include=" + ",".join(packages), *UNREAD, *(f"--aptopt={line}" for line in image.apt_options()),
                                SUITE, made, *sources], what)
                finish(made)
                tools.forget_unused(f"{name}-*")
                made.rename(target)
    return tools.used(target)


def root():
    """The folder of a node's root file system. Only to be read: nodes have an overlay each."""
    return tree("node-root", "the nodes' file tree", "minbase", PACKAGES, finish_root)


def finish_root(made):
    """As the Debian image does: networkd and resolved serve the network, nothing wakes up, no identity is in it."""
    script = ("systemctl enable systemd-networkd.service systemd-resolved.service\n"
              "systemctl disable apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer\n"
              "rm -rf /etc/ssh/ssh_host_*_key* /etc/hostname /etc/machine-id /var/lib/dbus/machine-id /etc/network/interfaces\n"
              "ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf\n"
              "rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/*.log /var/log/apt\n")
    check_output(["chroot", made, "sh", "-ec", script], deadline=60)


def proxy_tree():
    """The folder of what kube-proxy's image has beside the program."""
    return tree("proxy-root", "what kube-proxy calls", "extract", PROXY_PACKAGES, finish_proxy_tree)


def finish_proxy_tree(made):
    """Without what no program of it reads; the commands of iptables are those of nftables."""
    for name in ("dev", "var", "tmp", "usr/share", "usr/lib/x86_64-linux-gnu/gconv", "usr/lib/systemd", "lib/systemd"):
        shutil.rmtree(made / name, ignore_errors=True)
    for command in ("iptables", "ip6tables"):
        for end in ("", "-save", "-restore"):
            link = made / "usr/sbin" / f"{command}{end}"
            link.unlink(missing_ok=True)
            link.symlink_to(f"{command}-nft{end}")
