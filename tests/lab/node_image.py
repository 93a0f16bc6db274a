"""What the image of a Kubernetes node has beside Debian: Kubernetes' programs as services, and where images come from.

It is a layer over the tree of `node_root.py`. An operator's own image would have the same, but for what is said here. One that is to
become a node by steps of a release has no Kubernetes in it.
"""

import json
import os
import shutil

import programs

# What is installed on a node; the others are images.
PROGRAMS = ("kubeadm", "kubelet", "kubectl")
CONTAINERD = """version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # A machine may forbid every process, root's too, to be spared when memory is short.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    discard_unpacked_layers = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
"""
HOSTS = """server = "{url}"
[host."{url}"]
  capabilities = ["pull", "resolve"]
"""
KUBELET = """[Unit]
Description=kubelet
After=containerd.service network-online.target
Wants=containerd.service network-online.target
[Service]
ExecStart=/usr/local/bin/kubelet
Restart=always
RestartSec=2
StartLimitInterval=0
[Install]
WantedBy=multi-user.target
"""
# Where kubeadm writes what the kubelet is to do.
KUBEADM = """[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/local/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
# As in the Debian image; but no disk is to grow, and netplan would match the interface by a permanent address, which those of
# namespaces have not.
CLOUD_INIT = """datasource_list: [ConfigDrive, None]
locale: 'false'
ssh_genkeytypes: [ed25519]
growpart: {mode: 'off'}
resize_rootfs: false
system_info: {network: {renderers: [networkd]}}
"""
KUBERNETES_FILES = {
    "etc/systemd/system/kubelet.service": KUBELET,
    "etc/systemd/system/kubelet.service.d/10-kubeadm.conf": KUBEADM,
    "etc/sysctl.d/99-kubernetes.conf": "net.ipv4.ip_forward = 1\nnet.bridge.bridge-nf-call-iptables = 1\n",
}
FILES = {
    "etc/cloud/cloud.cfg.d/90_image.cfg": CLOUD_INIT,
    # Memory and disk are the machine's, which may swap, and be fuller than a node's may be.
    "etc/default/kubelet": "KUBELET_EXTRA_ARGS=--fail-swap-on=false --eviction-hard=memory.available<50Mi,nodefs.available<1%,imagefs.available<1%,nodefs.inodesFree<1%\n",
    # The kernel's log is the machine's.
    "etc/systemd/journald.conf.d/node.conf": "[Journal]\nReadKMsg=no\n",
    # Nobody announces IPv6 routes here, and a start would wait twelve seconds for one.
    "etc/systemd/network/10-cloud-init-eth0.network.d/node.conf": "[Network]\nIPv6AcceptRA=no\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
}


def make(folder, registry, version):
    """Fills a new folder. `registry` is the URL of what stands for registry.k8s.io, or None; `version` that of Kubernetes, or None."""
    files = FILES | {"etc/containerd/config.toml": CONTAINERD.format(pause=f"registry.k8s.io/pause:{programs.PAUSE}")}
    if registry:
        files |= {"etc/containerd/certs.d/registry.k8s.io/hosts.toml": HOSTS.format(url=registry)}
    write_files(folder, files | (KUBERNETES_FILES if version else {}))
    if not version:
        return
    wanted = folder / "etc/systemd/system/multi-user.target.wants/kubelet.service"
    wanted.parent.mkdir(parents=True)
    wanted.symlink_to("/etc/systemd/system/kubelet.service")
    installed = folder / "usr/local/bin"
    installed.mkdir(parents=True)
    for name, path in programs.programs(*PROGRAMS, version=version).items():
        place(path, installed / name)


def pod_network(subnet):
    """CNI's configuration of a node: a bridge, with a subnet that no other node has. Debian's plugins know of no other node."""
    address = {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": address},
        {"type": "portmap", "capabilities": {"portMappings": True}}]})


def write_files(folder, files):
    """Files by their paths, below a folder."""
    for path, text in files.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def place(source, target):
    """A file at a second place, as a link where that can be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
