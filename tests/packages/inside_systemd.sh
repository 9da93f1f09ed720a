#!/usr/bin/env bash
# Runs in the system that systemd_test.sh boots, without a network but with the packages in /packages.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2317  # called by the trap
show() {
  local status=$?
  ((status == 0)) || journalctl --no-pager -n 80 -u poold -u pool-scheduler
}
trap show EXIT
fail() { echo "FAILED: $*" && exit 1; }
await() { # COMMAND...: succeeds within 30 s
  local try
  for ((try = 0; try < 300; ++try)); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  "$@" || fail "$*"
}
pid_of() { systemctl show -P MainPID "$1"; }

apt-get -qq -y --no-install-recommends install gpupool-client gpupool-server gpupool-scheduler gpupool-softgpu >/dev/null
for unit in poold pool-scheduler; do
  [[ $(systemctl is-enabled $unit || true) == disabled && $(systemctl is-active $unit || true) == inactive ]] || fail "the installation has started or enabled $unit"
  systemd-analyze security --no-pager $unit | tail -n 1
done

echo "--- poold, without nvidia-modprobe and nvidia-smi"
[[ ! -e /usr/bin/nvidia-modprobe && ! -e /usr/bin/nvidia-smi ]] || fail "the system has NVIDIA's programs"
sed -i 's/^device = .*/device = "softgpu"/' /etc/gpupool/poold.toml
systemctl enable --quiet --now poold
await pool-admin health
/usr/bin/pool-run --server tcp://127.0.0.1:9700 -- /program
[[ -S /run/poold/poold-9700.sock && -d /run/gpupool && -s /var/log/gpupool/audit.log ]] || fail "files of poold are missing: $(ls -l /run/poold /run/gpupool /var/log/gpupool)"
state=(/var/lib/poold /var/lib/poold/suspended)
[[ $(stat -c '%U %a' "${state[@]}" | tr '\n' ' ') == "root 700 root 700 " ]] || fail "$(ls -ld "${state[@]}")"
systemctl reload poold
await pool-admin health
journalctl --no-pager -u poold | grep confinement || echo "all layers of the workers' confinement hold"

echo "--- pool-scheduler"
systemctl enable --quiet --now pool-scheduler
await pool-admin --scheduler 127.0.0.1:9800 health
[[ $(stat -c '%U %a' /var/lib/gpupool /var/lib/gpupool/key.pem | tr '\n' ' ') == "gpupool 700 gpupool 600 " ]] || fail "$(ls -la /var/lib/gpupool)"
[[ $(stat -c %U "/proc/$(pid_of pool-scheduler)") == gpupool ]] || fail "pool-scheduler runs as another user"
systemctl reload pool-scheduler

echo "--- upgrade: poold goes on in the same process, pool-scheduler is restarted"
poold=$(pid_of poold) scheduler=$(pid_of pool-scheduler)
apt-get -qq -y --reinstall install gpupool-common gpupool-client gpupool-server gpupool-scheduler gpupool-softgpu >/dev/null
await pool-admin health
await pool-admin --scheduler 127.0.0.1:9800 health
[[ $(pid_of poold) == "$poold" ]] || fail "the upgrade has restarted poold"
[[ $(pid_of pool-scheduler) != "$scheduler" ]] || fail "the upgrade has not restarted pool-scheduler"
journalctl --no-pager -u poold | grep -w 'upgraded' >/dev/null || fail "poold has not taken the new program"
/usr/bin/pool-run --server tcp://127.0.0.1:9700 -- /program

echo "--- removal"
systemctl stop poold
[[ -d /run/gpupool ]] || fail "/run/gpupool went with poold"
systemctl start poold
apt-get -qq -y purge 'gpupool-*' >/dev/null
[[ ! -e /etc/systemd/system/multi-user.target.wants/poold.service ]] || fail "poold is still enabled"
if grep -lsxE 'poold|poold-worker|pool-scheduler' /proc/[0-9]*/comm; then fail "a service runs on"; fi
[[ ! -e /var/lib/gpupool && ! -e /var/lib/poold && ! -e /var/log/gpupool && ! -e /etc/gpupool ]] || fail "files are left: $(ls -d /var/*/gpupool* /etc/gpupool)"
[[ -z $(systemctl --failed --no-legend | grep -E 'poold|pool-scheduler' || true) ]] || fail "$(systemctl --failed)"
echo "all of it works"
