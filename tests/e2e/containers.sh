#!/usr/bin/env bash
# Runs a program in separate network, process, IPC, mount and host-name namespaces, as in a container. It uses a poold outside of
# them through a shared folder (README, "Share one GPU between local containers").
#
#     tests/e2e/containers.sh POOLD CLIENT_FOLDER PROGRAM ARGUMENTS...
set -euo pipefail
poold=$1 client=$2
shift 2
namespaces=(unshare --net --pid --ipc --mount --uts --fork --mount-proc)
[[ $(id -u) == 0 ]] || namespaces+=(--user --map-root-user)
if ! "${namespaces[@]}" true 2>/dev/null; then
  echo "skipped: this machine gives no namespaces (unshare)"
  exit 77
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$poold" --device softgpu --listen "shm://$folder/pool.sock" --admin-socket none > "$folder/log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" || true; rm -rf "$folder"' EXIT
until [[ -S $folder/pool.sock ]]; do
  kill -0 "$server" 2>/dev/null || { cat "$folder/log"; exit 1; }
  sleep 0.05
done

# Only the folder connects the two: the program's network namespace does not even have a loopback interface.
status=0
GPUPOOL="shm://$folder/pool.sock" LD_LIBRARY_PATH="$client" "${namespaces[@]}" "$@" || status=$?
[[ $status == 0 ]] || cat "$folder/log"
exit "$status"
