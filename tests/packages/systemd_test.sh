#!/usr/bin/env bash
# Usage: systemd_test.sh MADE RELEASE PROGRAM
# Boots a Debian release with its systemd as a container (systemd-nspawn), and in it installs the packages, starts, reloads, upgrades and stops the
# services, and runs a CUDA program. inside_systemd.sh is what runs there.
set -euo pipefail
made=$1 release=$2 program=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/packages/systems.sh
source "$(dirname "${BASH_SOURCE[0]}")/systems.sh"
command -v systemd-nspawn >/dev/null || skip "systemd-nspawn is not installed (scripts/install-dependencies.sh --soak)"
[[ -x $program ]] || skip "$program is not built"
system=$work/system
make_system "$system" systemd systemd-sysv dbus
rm "$system/usr/sbin/policy-rc.d"
apt_get "$system" --download-only install gpupool-client gpupool-server gpupool-scheduler gpupool-softgpu
cp "$program" "$system/program"
cp "$(dirname "${BASH_SOURCE[0]}")/inside_systemd.sh" "$system/inside"
cat >"$system/etc/systemd/system/inside.service" <<'UNIT'
[Unit]
Wants=network.target
After=network.target multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /inside
StandardOutput=file:/output
StandardError=inherit
ExecStopPost=/bin/sh -c 'echo "$EXIT_STATUS" >/status; systemctl --no-block poweroff'
UNIT
mkdir -p "$system/etc/systemd/system/multi-user.target.wants"
ln -s ../inside.service "$system/etc/systemd/system/multi-user.target.wants/inside.service"

# With a number of its own the boot is not the first one, at which systemd would enable all units.
tr -d - </proc/sys/kernel/random/uuid >"$system/etc/machine-id"
# Where systemd runs, it makes a scope for the container; elsewhere nobody does.
scope=(--keep-unit)
if [[ -d /run/systemd/system ]]; then scope=(); fi
timeout --kill-after=30 600 systemd-nspawn --quiet --directory "$system" --register=no "${scope[@]}" --boot --private-network --console=read-only \
  </dev/null >"$work/console" 2>&1 || true
[[ -e $system/output || -e $system/status ]] || skip "systemd-nspawn cannot boot a container here: $(tail -n 3 "$work/console")"
cat "$system/output"
[[ -e $system/status ]] || fail "the container did not end within 600 s: $(tail -n 20 "$work/console")"
[[ $(<"$system/status") == 0 ]] || fail "status $(<"$system/status")"
