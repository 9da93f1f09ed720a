# shellcheck shell=sh disable=SC2154  # functions.sh
after_installation() { run_tool systemd-tmpfiles --create gpupool.conf || true; }
before_removal() { :; }
after_removal() { [ ! -d "$root/run/gpupool" ] || rmdir --ignore-fail-on-non-empty "$root/run/gpupool" || true; }
purge() { [ ! -d "$root/etc/gpupool" ] || rmdir --ignore-fail-on-non-empty "$root/etc/gpupool"; }
