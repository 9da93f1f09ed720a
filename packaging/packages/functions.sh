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

# policy_allows SERVICE ACTION: succeeds unless the administrator of a Debian system has forbidden packages to do that (policy-rc.d).
policy_allows() {
  [ -x "$root/usr/sbin/policy-rc.d" ] || return 0
  answer=0
  "$root/usr/sbin/policy-rc.d" "$1" "$2" >/dev/null 2>&1 || answer=$?
  [ "$answer" -ne 101 ]
}

reload_systemd() { ! systemd_runs || systemctl daemon-reload || true; }

# end_service NAME: stops it, and takes it out of what is started at boot.
end_service() {
  if systemd_runs && policy_allows "$1" stop; then systemctl stop "$1" || true; fi
  run_tool systemctl --no-reload --quiet disable "$1" || true
}

# remove_folder PATH: deletes a folder of gpupool's own.
remove_folder() { rm -rf "$root$1"; }
