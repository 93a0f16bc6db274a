#!/bin/bash
# Brings a container runtime and Kubernetes' programs of one version to this machine, and starts no node. May be done again, and be
# killed at any line.
#
# kubernetes       version, as 1.34.4
# packages         Image of the appliance that has them, as `slipway image import … --format packages --publish` made it
# packagesSHA256   SHA-256 of its file SHA256SUMS. Without it nobody notices what is changed on the way: they come by plain HTTP
# packagesURL      where they are instead
# pause            image of the pause container
# mirror           true: container images come from the appliance, too
set -euo pipefail
umask 022

say() { echo "packages: $*"; }
fail() { echo "packages: $*" >&2; exit 1; }

: "${kubernetes:?the release sets it}" "${packages:?the release sets it}"
stage=/opt/slipway/kubernetes/$kubernetes

# The appliance's address, as this machine's agent knows it.
appliance() {
    local server
    server=$(sed -n 's/.*"server"[[:space:]]*:[[:space:]]*"https\{0,1\}:\/\/\([^"/]*\)".*/\1/p' /etc/slipway/node.json | head -n 1)
    [[ -n $server ]] || fail "/etc/slipway/node.json names no server: set packagesURL in the release"
    if [[ $server == *]:* || $server != *]* ]]; then server=${server%:*}; fi
    echo "$server"
}

fetch() {
    curl --fail --silent --show-error --location --max-redirs 0 --retry 5 --retry-connrefused --connect-timeout 10 --max-time 900 \
        --output "$2" "$1" || fail "$1 cannot be fetched: is the Image $packages there, with publish: true?"
}

# Every line names a file below this folder, and nothing else.
check_names() {
    if grep -Evq '^[0-9a-f]{64} [ *][A-Za-z0-9_+][A-Za-z0-9._+~-]*(/[A-Za-z0-9_+][A-Za-z0-9._+~-]*)*$' "$1"; then
        fail "SHA256SUMS has a line that is no checksum of a file of this folder"
    fi
}

check_sums() {
    [[ -z ${packagesSHA256:-} ]] || echo "$packagesSHA256  $1" | sha256sum --check --status ||
        fail "SHA256SUMS is not the one that the release was made with"
}

is_staged() {
    [[ -s $stage/SHA256SUMS ]] && (cd "$stage" && sha256sum --check --status SHA256SUMS)
}

get() {
    local url part name
    url=${packagesURL:-}
    [[ -n $url ]] || url=http://$(appliance)/packages/$packages
    url=${url%/}
    part=$stage.part
    mkdir -p "$part"
    fetch "$url/SHA256SUMS" "$part/SHA256SUMS.new"
    check_sums "$part/SHA256SUMS.new"
    check_names "$part/SHA256SUMS.new"
    while read -r sum name; do
        name=${name#\*}
        if [[ -f $part/$name ]] && echo "$sum  $part/$name" | sha256sum --check --status; then continue; fi
        say "fetching $name"
        mkdir -p "$(dirname "$part/$name")"
        fetch "$url/$name" "$part/$name"
        echo "$sum  $part/$name" | sha256sum --check --status || fail "$name is not what SHA256SUMS says: it was changed or cut short"
    done <"$part/SHA256SUMS.new"
    mv "$part/SHA256SUMS.new" "$part/SHA256SUMS"
    sync
    rm -rf "$stage"
    mv "$part" "$stage"
}

# A file, written whole or not at all.
write() {
    mkdir -p "$(dirname "$1")"
    cat >"$1.new"
    mv "$1.new" "$1"
}

settings() {
    # In a container the kernel's modules are there or not.
    for module in overlay br_netfilter; do modprobe "$module" 2>/dev/null || true; done
    printf 'overlay\nbr_netfilter\n' | write /etc/modules-load.d/kubernetes.conf
    printf 'net.ipv4.ip_forward = 1\nnet.ipv6.conf.all.forwarding = 1\nnet.bridge.bridge-nf-call-iptables = 1\nnet.bridge.bridge-nf-call-ip6tables = 1\n' |
        write /etc/sysctl.d/99-kubernetes.conf
    sysctl --quiet --load /etc/sysctl.d/99-kubernetes.conf 2>/dev/null || true
    [[ $(cat /proc/sys/net/ipv4/ip_forward) == 1 ]] || fail "this machine does not forward packets: net.ipv4.ip_forward stays 0"
    # The kubelet does not start beside swap, unless the image told it to.
    if ! grep -qs -- --fail-swap-on=false /etc/default/kubelet; then
        swapoff -a || true
        sed -i '/^[^#].*[[:space:]]swap[[:space:]]/s/^/# by Kubernetes: /' /etc/fstab 2>/dev/null || true
    fi
}

runtime() {
    local debs=("$stage"/debs/*.deb)
    if [[ -e ${debs[0]} ]]; then
        command -v dpkg >/dev/null || fail "$packages has Debian packages, and this system has no dpkg"
        DEBIAN_FRONTEND=noninteractive dpkg --install --skip-same-version --refuse-downgrade --force-confold "${debs[@]}" ||
            fail "dpkg does not install the packages of $packages"
    fi
    command -v containerd >/dev/null || fail "there is no containerd: put its packages into debs/ of $packages, or into the image"
    # An image's own configuration stays where it has containerd look for mirrors.
    if ! grep -qs '^[[:space:]]*config_path = "/etc/containerd/certs.d"' /etc/containerd/config.toml; then
        write /etc/containerd/config.toml <<TOML
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "${pause:-registry.k8s.io/pause:3.10.1}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$(if [[ -d /opt/cni/bin ]]; then echo /opt/cni/bin; else echo /usr/lib/cni; fi)"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
TOML
        systemctl restart containerd
    fi
    if [[ ${mirror:-} == true && ! -e /etc/containerd/certs.d/_default/hosts.toml ]]; then
        write /etc/containerd/certs.d/_default/hosts.toml <<TOML
server = "http://$(appliance)"

[host."http://$(appliance)"]
capabilities = ["pull", "resolve"]
TOML
    fi
    systemctl enable --now containerd
}

unit() {
    if systemctl cat kubelet.service >/dev/null 2>&1; then return; fi
    write /etc/systemd/system/kubelet.service <<'UNIT'
[Unit]
Description=kubelet
After=containerd.service network-online.target
Wants=containerd.service network-online.target

[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=/usr/local/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
Restart=always
RestartSec=5
StartLimitIntervalSec=0

[Install]
WantedBy=multi-user.target
UNIT
    systemctl daemon-reload
}

if is_staged && check_sums "$stage/SHA256SUMS"; then
    say "$kubernetes is here already"
else
    get
fi
for program in kubeadm kubelet kubectl; do
    [[ -f $stage/bin/$program ]] || fail "$packages has no bin/$program"
    chmod 0755 "$stage/bin/$program"
done
settings
runtime
unit
say "containerd and Kubernetes $kubernetes are ready to be a node"
