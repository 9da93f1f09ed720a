# shellcheck shell=sh
after_installation() { # PREVIOUS_VERSION
  run_tool systemd-sysusers gpupool.conf
  reload_systemd
  # Leases and running programs go on while it restarts.
  if [ -n "$1" ] && systemd_runs && policy_allows pool-scheduler.service restart; then systemctl try-restart pool-scheduler.service || true; fi
}
before_removal() { end_service pool-scheduler.service; }
after_removal() { reload_systemd; }
# The user stays, so that its number does not pass to another one who then owns what is left of its files.
purge() {
  remove_folder /var/lib/gpupool
  remove_folder /var/log/pool-scheduler
}
