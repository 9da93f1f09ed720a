#!/usr/bin/env bash
# Usage: make-secrets.sh NAMESPACE TENANTS NODES > secrets.yaml
# Prints the Secrets that the chart needs: the scheduler's key and configuration, its public key, the operator's and the GPU
# nodes' tokens, and a token in the namespace of each tenant.
# NAMESPACE  of the chart
# TENANTS    namespaces whose pods get GPUs, separated by commas; the tenants in the pool have the same names
# NODES      names of the nodes with poold, separated by commas
# Each call makes new keys and tokens: keep the output, which is secret. Needs pool-scheduler in PATH.
set -euo pipefail
if [[ ${1:-} == --help || $# -ne 3 ]]; then
  sed -n 's/^# \{0,1\}//p' "$0" | sed -n '2,9p'
  [[ ${1:-} == --help ]] && exit 0 || exit 2
fi
namespace=$1
IFS=, read -ra tenants <<<"$2"
IFS=, read -ra nodes <<<"$3"
command -v pool-scheduler >/dev/null || { echo "make-secrets.sh: pool-scheduler is not in PATH" >&2 && exit 1; }
umask 077
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

encoded() { base64 -w0 <"$1"; }

# add KIND NAME: writes a token to $scratch/NAME.KIND, and its entry to the configuration.
add() {
  pool-scheduler --make-token >"$scratch/made"
  head -n 1 "$scratch/made" >"$scratch/$2.$1"
  printf '[[%s]]\nname = "%s"\n%s\n' "$1" "$2" "$(tail -n 1 "$scratch/made")" >>"$scratch/pool.toml"
}

# secret NAMESPACE NAME KEY FILE [KEY FILE]...
secret() {
  printf -- '---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\n  namespace: %s\ndata:\n' "$2" "$1"
  shift 2
  while (($#)); do
    printf '  %s: %s\n' "$1" "$(encoded "$2")"
    shift 2
  done
}

add operator controller
for tenant in "${tenants[@]}"; do add tenant "$tenant"; done
words=()
for node in "${nodes[@]}"; do
  add node "$node"
  words+=("$node" "$scratch/$node.node")
done
pool-scheduler --key "$scratch/key.pem" --print-public-key >"$scratch/public.pem"
secret "$namespace" gpupool-scheduler key.pem "$scratch/key.pem" pool-scheduler.toml "$scratch/pool.toml"
secret "$namespace" gpupool-public public.pem "$scratch/public.pem"
secret "$namespace" gpupool-operator token "$scratch/controller.operator"
secret "$namespace" gpupool-nodes "${words[@]}"
for tenant in "${tenants[@]}"; do secret "$tenant" gpupool-token token "$scratch/$tenant.tenant"; done
