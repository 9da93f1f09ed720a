#!/usr/bin/env bash
# Usage: bare_root_test.sh MADE RELEASE PROGRAM
# Installs the packages with apt in a bare system of a Debian release, runs a CUDA program through poold on softgpu there, upgrades, removes and
# purges them. install_time.sh measures how long the installation of the client takes.
set -euo pipefail
made=$1 release=$2 program=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/packages/systems.sh
source "$(dirname "${BASH_SOURCE[0]}")/systems.sh"
system=$work/system
make_system "$system"

apt_get "$system" install gpupool-client
in_system "$system" pool-run --version
in_system "$system" ldconfig -p >"$work/libraries"
if grep libcuda "$work/libraries"; then fail "the dynamic linker finds the client library, and would NVIDIA's no longer"; fi

apt_get "$system" install gpupool-server gpupool-scheduler gpupool-softgpu
for name in poold pool-scheduler pool-admin pool-smi pool-cdi pool-sim; do in_system "$system" "$name" --version; done
in_system "$system" getent passwd gpupool >/dev/null || fail "there is no user gpupool"
[[ $(in_system "$system" dpkg --audit) == "" ]] || fail "dpkg --audit: $(in_system "$system" dpkg --audit)"
# shellcheck disable=SC2016  # a variable of dpkg-query
mapfile -t installed < <(in_system "$system" dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' 'gpupool-*' | sed -n 's/^ii *//p')
((${#installed[@]} == 5)) || fail "these packages are installed: ${installed[*]}"
[[ -z $(in_system "$system" dpkg --verify "${installed[@]}") ]] || fail "files differ from the packages': $(in_system "$system" dpkg --verify "${installed[@]}")"

cat >"$system/run_program" <<'SCRIPT'
set -e
poold --device softgpu --listen tcp://127.0.0.1:0 --port-file /port 2>/poold.log &
for try in $(seq 300); do [ ! -s /port ] || break; sleep 0.1; done
pool-run --server "tcp://127.0.0.1:$(cat /port)" -- /program
pool-admin health
kill $!
wait $!
rm /port
SCRIPT
if [[ -x $program ]]; then
  cp "$program" "$system/program"
  in_system "$system" sh /run_program || fail "the program failed in the system: $(tail -n 20 "$system/poold.log")"
else
  echo "SKIPPED: bare_root_test.program: $program is not built"
fi

echo '# mine' >>"$system/etc/gpupool/poold.toml"
echo secret >"$system/etc/gpupool/mine.key"
next_revision "$system"
apt_get "$system" upgrade
in_system "$system" dpkg-query -W "${installed[@]}"
# shellcheck disable=SC2016  # a variable of dpkg-query
if in_system "$system" dpkg-query -W -f '${Version}\n' "${installed[@]}" | grep -v -- '-2$'; then fail "not all packages were upgraded"; fi
[[ $(in_system "$system" dpkg -S "/$moving") == gpupool-client:* && $(<"$system/$moving") == moved ]] || fail "the upgrade has lost a file that has moved"
grep -q '^# mine' "$system/etc/gpupool/poold.toml" || fail "the upgrade has replaced edited configuration"
grep -q '^# of the next' "$system/etc/gpupool/pool-scheduler.toml" || fail "the upgrade has kept old configuration"
if [[ -x $program ]]; then in_system "$system" sh /run_program || fail "the program failed after the upgrade"; fi

apt_get "$system" remove 'gpupool-*'
[[ ! -e $system/usr/lib/gpupool && -e $system/etc/gpupool/poold.toml ]] || fail "a removal leaves $(find "$system/usr/lib/gpupool" 2>/dev/null), $(ls "$system/etc/gpupool")"
apt_get "$system" purge 'gpupool-*'
[[ $(ls "$system/etc/gpupool") == mine.key ]] || fail "a purge leaves $(ls "$system/etc/gpupool")"
echo "$release: installed, upgraded, removed and purged"
