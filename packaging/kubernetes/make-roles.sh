#!/usr/bin/env bash
# Usage: make-roles.sh NAMESPACE SPACES | kubectl apply -f -
# Prints the Role and RoleBinding that let gpupool's accounts read the Secret gpupool-token of each namespace, and no other
# Secret. Pods of a namespace without them get no GPUs.
# NAMESPACE  of the chart
# SPACES     namespaces whose pods get GPUs, separated by commas
set -euo pipefail
if [[ ${1:-} == --help || $# -ne 2 ]]; then
  sed -n 's/^# \{0,1\}//p' "$0" | sed -n '2,6p'
  [[ ${1:-} == --help ]] && exit 0 || exit 2
fi
IFS=, read -ra spaces <<<"$2"
for space in "${spaces[@]}"; do
  cat <<END
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: gpupool-token
  namespace: $space
rules:
  - apiGroups: [""]
    resources: [secrets]
    resourceNames: [gpupool-token]
    verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: gpupool-token
  namespace: $space
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: gpupool-token
subjects:
  - kind: ServiceAccount
    name: gpupool-controller
    namespace: $1
  - kind: ServiceAccount
    name: gpupool-node
    namespace: $1
END
done
