#!/bin/bash
# Makes this machine a node of a cluster by kubeadm, or brings the node to another version. May be done again, and be killed at any
# line: what was begun and did not end is undone first.
#
# kubernetes                        version, as 1.34.4, which the step before has brought
# conntrackMaxPerCore               what kube-proxy makes of the machine's table of connections; 0 leaves it
# virtualIP                         true: nodes of the control plane hold the endpoint's address by VRRP
# ignorePreflightErrors             what kubeadm is to overlook
# nodeRole                          first, control or worker; with all that follows it comes from the appliance
# clusterEndpoint                   where the API server is reached, as 192.0.2.10:6443
# podsCIDR, servicesCIDR            networks of the cluster
# isDedicatedMaster                 false: workloads run on the control plane, too
# release_needs_upgrade             true: a node of another version may be upgraded now
# $SLIPWAY_DEPLOYMENT               folder with join-token, ca-hash, and of the control plane the certificates
set -euo pipefail
umask 077

say() { echo "kubernetes: $*"; }
fail() { echo "kubernetes: $*" >&2; exit 1; }

: "${kubernetes:?the release sets it}" "${nodeRole:?the appliance sets it}" "${clusterEndpoint:?the appliance sets it}"
deployment=${SLIPWAY_DEPLOYMENT:?the agent sets it}
stage=/opt/slipway/kubernetes/$kubernetes/bin
state=/var/lib/slipway/kubernetes
config=/run/slipway-kubeadm.yaml
pki=/etc/kubernetes/pki
admin=/etc/kubernetes/admin.conf
trap 'rm -f "$config"' EXIT

# Host and port of the endpoint, and the host as an address.
case $clusterEndpoint in
    *]:* | *:*:*) port=6443 host=$clusterEndpoint; if [[ $host == *]:* ]]; then port=${host##*:} host=${host%:*}; fi ;;
    *:*) port=${clusterEndpoint##*:} host=${clusterEndpoint%:*} ;;
    *) port=6443 host=$clusterEndpoint ;;
esac
bare=${host#[} bare=${bare%]}
if [[ $bare == *:* ]]; then endpoint="[$bare]:$port"; else endpoint=$bare:$port; fi

is_control() { [[ $nodeRole == first || $nodeRole == control ]]; }

# What this machine calls itself in the cluster. Once chosen it stays: later the endpoint's address may be this machine's, too.
address() {
    local way
    if [[ ! -s $state/address ]]; then
        way=$(ip -o route get "$(getent ahosts "$bare" | awk 'NR == 1 { print $1 }')" 2>/dev/null | head -n 1) || true
        [[ $way == *" src "* ]] || fail "there is no way to the endpoint $endpoint"
        way=${way#* src }
        keep "$state/address" "${way%% *}"
    fi
    cat "$state/address"
}

# A file with this text, whole or not at all, and on disk when this returns.
keep() {
    echo "$2" >"$1.new"
    mv "$1.new" "$1"
    sync "$1"
}

# A program of this version in its place; a running one goes on with the old one.
install_program() {
    cmp --silent "$stage/$1" "/usr/local/bin/$1" && return
    [[ -f $stage/$1 ]] || fail "there is no $1 of $kubernetes: the step packages must bring it"
    install --mode 0755 "$stage/$1" "/usr/local/bin/.$1.new"
    mv "/usr/local/bin/.$1.new" "/usr/local/bin/$1"
}

given() {
    [[ -s $deployment/$1 ]] || fail "the appliance gave no $1 yet"
    cat "$deployment/$1"
}

certificate() {
    given "$1" >/dev/null
    mkdir -p "$(dirname "$pki/$2")"
    cmp --silent "$deployment/$1" "$pki/$2" && return
    install --mode "$3" "$deployment/$1" "$pki/$2.new"
    mv "$pki/$2.new" "$pki/$2"
}

# Everybody of a control plane has the same.
certificates() {
    certificate ca.crt ca.crt 0644
    certificate ca.key ca.key 0600
    certificate sa.pub sa.pub 0644
    certificate sa.key sa.key 0600
    certificate front-proxy-ca.crt front-proxy-ca.crt 0644
    certificate front-proxy-ca.key front-proxy-ca.key 0600
    certificate etcd-ca.crt etcd/ca.crt 0644
    certificate etcd-ca.key etcd/ca.key 0600
}

# keepalived gives the endpoint's address to one node of the control plane whose API server answers.
hold_endpoint() {
    local way card router
    if [[ ${virtualIP:-} != true || $bare == "$own" ]]; then return; fi
    command -v keepalived >/dev/null || fail "there is no keepalived to hold the endpoint: put it into debs/ of the packages, or into the image"
    way=$(ip -o addr show to "$own" | head -n 1)
    card=$(awk '{ print $2 }' <<<"$way")
    [[ -n $card ]] || fail "no interface has the address $own"
    case $bare in
        *:*) router=$((16#$(tail -c 3 <<<"${bare##*:}" | tr -d '\n' | sed 's/^$/1/'))) ;;
        *[!0-9.]*) fail "the endpoint $bare is no address: it cannot be held" ;;
        *) router=${bare##*.} ;;
    esac
    if ((router == 0)); then router=1; fi
    mkdir -p /etc/keepalived
    printf '#!/bin/sh\nexec curl --silent --fail --insecure --max-time 3 --output /dev/null https://localhost:%s/livez\n' "$port" >/etc/keepalived/apiserver.new
    chmod 0755 /etc/keepalived/apiserver.new
    mv /etc/keepalived/apiserver.new /etc/keepalived/apiserver
    cat >/etc/keepalived/keepalived.conf.new <<KEEPALIVED
global_defs {
  enable_script_security
  script_user root
}
vrrp_script apiserver {
  script "/etc/keepalived/apiserver"
  interval 2
  timeout 4
  fall 3
  rise 1
  weight -50
}
vrrp_instance endpoint {
  state BACKUP
  interface $card
  virtual_router_id $router
  priority 100
  advert_int 1
  virtual_ipaddress {
    $bare
  }
  track_script {
    apiserver
  }
}
KEEPALIVED
    if cmp --silent /etc/keepalived/keepalived.conf.new /etc/keepalived/keepalived.conf; then
        systemctl enable --now keepalived
    else
        mv /etc/keepalived/keepalived.conf.new /etc/keepalived/keepalived.conf
        systemctl enable keepalived
        systemctl restart keepalived
    fi
}

registration() {
    echo "nodeRegistration:"
    echo "  criSocket: unix:///run/containerd/containerd.sock"
    echo "  kubeletExtraArgs: [{name: node-ip, value: \"$own\"}]"
    if [[ ${isDedicatedMaster:-true} == false ]] && is_control; then echo "  taints: []"; fi
    if [[ -n ${ignorePreflightErrors:-} ]]; then echo "  ignorePreflightErrors: [$ignorePreflightErrors]"; fi
}

init_documents() {
    cat <<YAML
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: "$own", bindPort: $port}
bootstrapTokens: [{ttl: 10m0s, description: "of the first start"}]
$(registration)
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v$kubernetes
controlPlaneEndpoint: "$endpoint"
apiServer: {certSANs: ["$bare"]}
networking: {podSubnet: "${podsCIDR:?the appliance sets it}", serviceSubnet: "${servicesCIDR:?the appliance sets it}"}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
conntrack: {maxPerCore: ${conntrackMaxPerCore:-32768}}
YAML
}

join_documents() {
    local token hash
    token=$(given join-token)
    hash=$(given ca-hash)
    cat <<YAML
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {bootstrapToken: {token: "$token", apiServerEndpoint: "$endpoint", caCertHashes: ["sha256:${hash#sha256:}"]}}
$(registration)
YAML
    if is_control; then echo "controlPlane: {localAPIEndpoint: {advertiseAddress: \"$own\", bindPort: $port}}"; fi
}

# This node's own API server, whoever has the endpoint's address.
local_server() {
    if [[ $own == *:* ]]; then echo "https://[$own]:$port"; else echo "https://$own:$port"; fi
}

server_answers() {
    curl --silent --fail --insecure --max-time 5 --output /dev/null "$1/readyz"
}

wait_for() {
    local what=$1 seconds=$2
    shift 2
    for ((left = seconds; left > 0; left -= 2)); do
        if "$@"; then return; fi
        sleep 2
    done
    fail "$what is not there after $seconds seconds"
}

# What an earlier try left that did not end.
undo() {
    if compgen -G '/etc/kubernetes/*.conf' >/dev/null || compgen -G '/etc/kubernetes/manifests/*' >/dev/null || [[ -e /var/lib/etcd/member ]]; then
        say "undoing what an earlier try left"
        kubeadm reset --force --cleanup-tmp-dir
    fi
}

# The API server runs, and what kubeadm does behind it may be missing.
is_half_begun() {
    [[ -e $admin && -e /etc/kubernetes/manifests/kube-apiserver.yaml ]] || return 1
    systemctl start kubelet
    for ((left = 60; left > 0; left -= 1)); do
        if server_answers "$(local_server)"; then return; fi
        sleep 2
    done
    return 1
}

begin_cluster() {
    local super=/etc/kubernetes/super-admin.conf
    certificates
    hold_endpoint
    init_documents >"$config"
    if is_half_begun; then
        say "going on with a control plane that runs"
        if [[ -e $super ]]; then
            kubectl --kubeconfig "$super" --server "$(local_server)" create clusterrolebinding kubeadm:cluster-admins \
                --clusterrole cluster-admin --group kubeadm:cluster-admins --dry-run=client --output yaml |
                kubectl --kubeconfig "$super" --server "$(local_server)" apply --filename -
        fi
        kubeadm init phase upload-config all --config "$config"
        kubeadm init phase mark-control-plane --config "$config"
        kubeadm init phase bootstrap-token --config "$config"
        kubeadm init phase kubelet-finalize all --config "$config"
        kubeadm init phase addon all --config "$config"
        return
    fi
    undo
    # Two clusters must not have one endpoint.
    if server_answers "https://$endpoint"; then
        fail "a cluster answers at $endpoint already: this machine must join it, and not begin another one"
    fi
    certificates
    kubeadm init --config "$config"
}

is_node() {
    kubectl --kubeconfig /etc/kubernetes/kubelet.conf --request-timeout 10s get node "$(hostname | tr '[:upper:]' '[:lower:]')" >/dev/null 2>&1
}

join_cluster() {
    join_documents >"$config"
    if is_control; then
        certificates
        if [[ -e /etc/kubernetes/kubelet.conf ]] && is_half_begun && is_node; then
            say "going on with a control plane that runs"
            kubeadm join phase control-plane-join mark-control-plane --config "$config"
        else
            undo
            certificates
            kubeadm join --config "$config"
        fi
        hold_endpoint
    elif [[ -e /etc/kubernetes/kubelet.conf ]] && is_node; then
        say "this machine has joined already"
        rm -f /etc/kubernetes/bootstrap-kubelet.conf
    else
        undo
        kubeadm join --config "$config"
    fi
}

upgrade() {
    install_program kubeadm
    install_program kubectl
    # A check of kubeadm's starts a pod, which finds no node where all are drained.
    local overlook=CreateJob
    if [[ -n ${ignorePreflightErrors:-} ]]; then overlook=$overlook,$ignorePreflightErrors; fi
    if is_control && ! kubectl --kubeconfig "$admin" --namespace kube-system get configmap kubeadm-config \
        --output 'jsonpath={.data.ClusterConfiguration}' | grep -qx "kubernetesVersion: v$kubernetes"; then
        say "upgrading the control plane to $kubernetes"
        kubeadm upgrade apply "v$kubernetes" --yes --ignore-preflight-errors "$overlook"
    else
        say "upgrading this node to $kubernetes"
        kubeadm upgrade node --ignore-preflight-errors "$overlook"
    fi
}

kubelet_answers() {
    [[ $(curl --silent --max-time 5 http://127.0.0.1:10248/healthz) == ok ]]
}

mkdir -p "$state"
own=$(address)
if [[ -e $state/deployed ]]; then
    have=$(<"$state/deployed")
    if [[ $have != "$kubernetes" ]]; then
        [[ ${release_needs_upgrade:-} == true ]] || fail "this node runs $have, and it is not its turn to be upgraded to $kubernetes"
        upgrade
    fi
    if is_control; then hold_endpoint; fi
else
    if [[ ! -e $state/begun && -e /etc/kubernetes/kubelet.conf ]]; then
        fail "this machine is a node already, which these steps did not make"
    fi
    keep "$state/begun" "$kubernetes"
    for program in kubeadm kubectl kubelet; do install_program "$program"; done
    systemctl enable kubelet
    case $nodeRole in
        first) begin_cluster ;;
        control | worker) join_cluster ;;
        *) fail "nodeRole is first, control or worker, and not $nodeRole" ;;
    esac
fi
if ! cmp --silent "$stage/kubelet" /usr/local/bin/kubelet; then
    install_program kubelet
    systemctl restart kubelet
fi
systemctl enable --now kubelet
wait_for "the kubelet" 120 kubelet_answers
keep "$state/deployed" "$kubernetes"
if [[ -n ${SLIPWAY_RESULT:-} ]]; then echo "{\"kubernetes\": \"$kubernetes\", \"role\": \"$nodeRole\"}" >"$SLIPWAY_RESULT"; fi
say "this machine is a node of $endpoint with Kubernetes $kubernetes"
