# shellcheck shell=sh
# Functions of the packages' scripts.sh. Each works in a running system, in a chroot, and in another root (DPKG_ROOT).
root=${DPKG_ROOT:-}

# Succeeds if this system is running under systemd, so that its services can be asked for something.
systemd_runs() { [ -z "$root" ] && [ -d /run/systemd/system ]; }

# run_tool PROGRAM ARGUMENT...: runs a tool of systemd on the root; succeeds if it is not installed.
run_tool() {
  tool=$1
  shift
  if command -v "$tool" >/dev/null 2>&1; then "$tool" ${root:+--root="$root"} "$@"; fi
}

reload_systemd() { ! systemd_runs || systemctl daemon-reload || true; }

# end_service NAME: stops it, and takes it out of what is started at boot.
end_service() {
  if systemd_runs; then systemctl --no-reload disable --now "$1" || true; else run_tool systemctl --no-reload --quiet disable "$1" || true; fi
}

# remove_folder PATH: deletes a folder of gpupool's own.
remove_folder() { rm -rf "$root$1"; }
