#!/bin/bash
# Gives this machine's node its labels, and takes away those that it was given before and has no more. May be done again.
#
# nodeLabels   as key=value,key=value, from the appliance
# nodeRole     first, control or worker
set -euo pipefail
umask 077

state=/var/lib/slipway/kubernetes
node=$(hostname | tr '[:upper:]' '[:lower:]')
# A node may not give itself every label; an administrator may.
kubeconfig=/etc/kubernetes/kubelet.conf
if [[ ${nodeRole:-} != worker && -e /etc/kubernetes/admin.conf ]]; then kubeconfig=/etc/kubernetes/admin.conf; fi

label() { kubectl --kubeconfig "$kubeconfig" --request-timeout 30s label node "$node" --overwrite "$@"; }

mkdir -p "$state"
touch "$state/labels"
wanted=()
IFS=, read -r -a wanted <<<"${nodeLabels:-}"
keys=()
for one in "${wanted[@]}"; do
    if [[ ! $one =~ ^[A-Za-z0-9][A-Za-z0-9./_-]*=[A-Za-z0-9._-]*$ ]]; then
        echo "labels: $one is no label of the form key=value" >&2
        exit 1
    fi
    keys+=("${one%%=*}")
done
# What is to be given is noted before it is given: after a kill it is still known to be ours.
{ cat "$state/labels"; printf '%s\n' "${keys[@]}"; } | sed '/^$/d' | sort -u >"$state/labels.new"
mv "$state/labels.new" "$state/labels"
if ((${#wanted[@]})); then label "${wanted[@]}"; fi
while read -r key; do
    if ! printf '%s\n' "${keys[@]}" | grep -qxF -- "$key"; then label "$key-"; fi
done <"$state/labels"
printf '%s\n' "${keys[@]}" | sed '/^$/d' >"$state/labels.new"
mv "$state/labels.new" "$state/labels"
echo "labels: ${nodeLabels:-none}"
