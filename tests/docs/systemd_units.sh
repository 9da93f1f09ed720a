#!/usr/bin/env bash
# Has systemd check examples/systemd/*.service: that every key is known, every value valid and every program there.
# The units are not started: that would need a systemd of our own.
#
#     tests/docs/systemd_units.sh PREFIX        with bin/poold and bin/pool-scheduler
set -euo pipefail
prefix=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if ! command -v systemd-analyze >/dev/null; then
  echo "skipped: there is no systemd-analyze"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for unit in "$root"/examples/systemd/*.service; do sed "s,/opt/gpupool,$prefix,g" "$unit" > "$folder/$(basename "$unit")"; done

status=0
said=$(systemd-analyze verify "$folder"/*.service 2>&1) || status=$?
# A warning leaves the status at 0; other units of this machine may have some of their own.
mine=$(grep -E '(poold|pool-scheduler)\.service' <<< "$said" || true)
if [[ $status != 0 || -n $mine ]]; then
  echo "systemd-analyze verify: status $status"
  echo "$said"
  exit 1
fi
echo "systemd accepts the units of examples/systemd"
