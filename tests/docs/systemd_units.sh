#!/usr/bin/env bash
# Checks examples/systemd/*.service with systemd-analyze: keys, values, and the existence of the programs.
# The units are not started, which would need a separate systemd.
#
#     tests/docs/systemd_units.sh PREFIX        (PREFIX has bin/poold and bin/pool-scheduler)
set -euo pipefail
prefix=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if ! command -v systemd-analyze >/dev/null; then
  echo "skipped: systemd-analyze is not installed"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for unit in "$root"/examples/systemd/*.service; do sed "s,/opt/gpupool,$prefix,g" "$unit" > "$folder/$(basename "$unit")"; done

status=0
said=$(systemd-analyze verify "$folder"/*.service 2>&1) || status=$?
# Warnings do not change the exit status; other units of this machine may have warnings, too.
mine=$(grep -E '(poold|pool-scheduler)\.service' <<< "$said" || true)
if [[ $status != 0 || -n $mine ]]; then
  echo "systemd-analyze verify: status $status"
  echo "$said"
  exit 1
fi
echo "systemd accepts the units of examples/systemd"
