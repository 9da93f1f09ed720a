#!/usr/bin/env bash
# Usage: install_time.sh MADE RELEASE WHEELS
# Measures how long one line takes that installs the client in a bare system of a Debian release, by apt and by pip, from an index of
# scripts/make-index.sh that a web server on loopback serves. The goal is 20 s. What comes from Debian's mirror is there before. Fails if
# an installation fails, not if it is slow: the time is the machine's.
set -euo pipefail
made=$1 release=$2 wheels=$3
work=$(mktemp -d)
server=''
trap '[[ -z $server ]] || kill "$server"; rm -rf "$work"' EXIT
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=tests/packages/systems.sh
source "$here/systems.sh"
system=$work/system goal=20

make_system "$system" python3 python3-venv
# The packages' dependencies, but not the packages.
apt_get "$system" --download-only install gpupool-client
rm -f "$system"/var/cache/apt/archives/gpupool-*.deb "$system"/etc/apt/sources.list.d/gpupool.list "$system"/packages/*
apt_get "$system" update

"$here/../../scripts/make-index.sh" "$work/index" "$made" "$wheels" >/dev/null
python3 -u -m http.server --bind 127.0.0.1 --directory "$work/index" 0 >"$work/server.log" 2>&1 &
server=$!
for ((try = 0; try < 300; ++try)); do
  port=$(sed -nE 's/^Serving HTTP on .* port ([0-9]+) .*/\1/p' "$work/server.log")
  [[ -z $port ]] || break
  sleep 0.1
done
[[ -n $port ]] || fail "the web server did not start: $(<"$work/server.log")"

# measure NAME LINE: runs the line in the system and prints its time.
measure() {
  local began=$EPOCHREALTIME took verdict=within
  in_system "$system" sh -c "$2" >"$work/line.log" 2>&1 || fail "'$2': $(tail -n 20 "$work/line.log")"
  took=$(awk -v from="$began" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }')
  if awk -v took="$took" -v goal=$goal 'BEGIN { exit took <= goal }'; then verdict="more than"; fi
  echo "$release: $1 installed the client in $took s, $verdict $goal s"
}
index=http://127.0.0.1:$port
measure apt "echo 'deb [trusted=yes] $index ./' >/etc/apt/sources.list.d/gpupool.list && apt-get update && apt-get install -y --no-install-recommends gpupool-client"
in_system "$system" pool-run --version

if compgen -G "$wheels/gpupool-*.whl" >/dev/null; then
  measure pip "python3 -m venv /opt/gpupool && /opt/gpupool/bin/pip install --index-url $index/simple gpupool"
  in_system "$system" /opt/gpupool/bin/gpupool --version
else
  echo "SKIPPED: packaging.install_time.pip: wheel.build has made no wheel"
fi
