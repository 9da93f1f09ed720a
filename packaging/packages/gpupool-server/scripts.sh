# shellcheck shell=sh
# After an upgrade poold goes on with its sessions in the new program (docs/operations.md, "Upgrade poold"). With the old one, workers for
# further sessions might miss libraries that the new package does not have.
after_installation() { # PREVIOUS_VERSION
  reload_systemd
  if [ -n "$1" ] && systemd_runs && policy_allows poold.service restart && systemctl --quiet is-active poold.service; then
    pool-admin upgrade || echo "poold goes on with its previous program. Run 'pool-admin upgrade' again, or 'systemctl restart poold', which ends its sessions." >&2
  fi
}
before_removal() { end_service poold.service; }
after_removal() { reload_systemd; }
purge() {
  remove_folder /var/lib/poold
  remove_folder /var/log/gpupool
}
