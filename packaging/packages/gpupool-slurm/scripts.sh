# shellcheck shell=sh
# slurmd is the administrator's: it reads the drop-in when it is restarted.
after_installation() { reload_systemd; } # PREVIOUS_VERSION
before_removal() { :; }
after_removal() { reload_systemd; }
purge() { :; }
