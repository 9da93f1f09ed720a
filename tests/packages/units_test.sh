#!/usr/bin/env bash
# Usage: units_test.sh MADE
# Checks the units of the packages with systemd-analyze: keys and values, the programs that they start, and how exposed they are; and that
# the programs accept the packages' configuration.
set -euo pipefail
made=$1
if ! command -v systemd-analyze >/dev/null; then echo "SKIPPED: packaging.units: systemd-analyze is not installed (package systemd)" && exit 77; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" && exit 1; }
for package in common server scheduler softgpu; do dpkg-deb -x "$made/gpupool-$package"_*.deb "$work/root"; done
units=$work/root/usr/lib/systemd/system

# Programs must exist below this machine's root for `verify`: in the copies of the units they are in the unpacked packages.
mkdir "$work/units"
for unit in poold pool-scheduler; do sed "s,/usr/lib/gpupool/,$work/root/usr/lib/gpupool/,g" "$units/$unit.service" >"$work/units/$unit.service"; done
said=$(systemd-analyze verify --man=no "$work"/units/*.service 2>&1) || fail "systemd-analyze verify: $said"
# Warnings do not change the exit status; other units of this machine may have warnings, too.
if grep -E '(poold|pool-scheduler)\.service' <<<"$said"; then fail "systemd-analyze verify has warnings"; fi

# Device nodes are made with all privileges before poold starts; where NVIDIA's programs are missing or fail, the service starts all the same.
for command in "nvidia-modprobe -u -c=0" "nvidia-smi -L"; do
  grep -qxF "ExecStartPre=+-/usr/bin/$command" "$units/poold.service" || fail "poold.service does not run '$command' with the prefixes + and -"
done

# The highest accepted exposure, in tenths of systemd's number from 0 to 10. poold makes namespaces and opens GPUs.
check_exposure() { # UNIT TENTHS
  systemd-analyze security --offline=true --threshold="$2" "$work/units/$1.service" >"$work/exposure" 2>&1 ||
    fail "$1.service is more exposed than $2/10: $(tail -n 1 "$work/exposure")"
  tail -n 1 "$work/exposure"
}
check_exposure poold 55
check_exposure pool-scheduler 18

# Options that end before anything is served, but after the configuration has been read.
sed "s,/var/lib/gpupool,$work,; s,/var/log/pool-scheduler,$work," "$work/root/etc/gpupool/pool-scheduler.toml" >"$work/pool-scheduler.toml"
"$work/root/usr/lib/gpupool/bin/pool-scheduler" --config "$work/pool-scheduler.toml" --print-public-key >"$work/public" ||
  fail "pool-scheduler refuses the package's configuration"
grep -q 'PUBLIC KEY' "$work/public" || fail "no public key: $(<"$work/public")"
# systemd makes the folder of the configuration, with the mode that poold asks for; the rest of /var/lib is not writable for poold.
folder=$(sed -nE 's/^suspended-folder = "(.*)".*/\1/p' "$work/root/etc/gpupool/poold.toml")
[[ -n $folder && " $(sed -n 's/^StateDirectory=//p' "$units/poold.service") " == *" ${folder#/var/lib/} "* ]] ||
  fail "suspended-folder of poold.toml, '$folder', is not in StateDirectory= of poold.service"
grep -qx 'StateDirectoryMode=0700' "$units/poold.service" || fail "StateDirectoryMode= of poold.service is not 0700, without which poold does not start"
status=0
"$work/root/usr/lib/gpupool/bin/poold" --config "$work/root/etc/gpupool/poold.toml" --device softgpu --check-host >"$work/host" 2>&1 || status=$?
((status <= 1)) || fail "poold refuses the package's configuration: $(<"$work/host")"  # 1: a layer does not hold on this machine
echo "the units and the configuration are valid"
