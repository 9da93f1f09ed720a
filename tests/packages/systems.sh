# Sourced by bare_root_test.sh and systemd_test.sh: makes a Debian system in a folder, with the packages as a source of apt's.
# shellcheck shell=bash disable=SC2154  # variables of the tests
# Variables of the caller: made (the packages), release, work (a scratch folder).

skip() {
  echo "SKIPPED: $(basename "$0" .sh): $1"
  exit 77
}
fail() {
  echo "FAILED: $*"
  exit 1
}

# The mirror that this machine uses.
mirror() {
  # shellcheck disable=SC2016  # variables of apt
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 -E 'debian/?$' || true
}

# make_system ROOT PACKAGE...: the smallest system with apt, and the given packages.
make_system() {
  local root=$1 uri include
  shift
  ((EUID == 0)) || skip "needs root"
  command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed (scripts/install-dependencies.sh --soak)"
  uri=$(mirror)
  [[ -n $uri ]] || skip "this machine has no source of Debian's packages"
  include=$(IFS=,; echo "$*")
  mmdebstrap --variant=apt ${include:+--include="$include"} "$release" "$root" "$uri" >"$work/mmdebstrap.log" 2>&1 || {
    if grep -qE 'Could not resolve|Connection|NO_PUBKEY|Temporary failure|unable to resolve' "$work/mmdebstrap.log"; then
      skip "mmdebstrap cannot get $release: $(tail -n 1 "$work/mmdebstrap.log")"
    fi
    fail "mmdebstrap: $(tail -n 20 "$work/mmdebstrap.log")"
  }
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  mkdir "$root/packages"
  cp "$made"/*.deb "$made/Packages" "$root/packages/"
  echo 'deb [trusted=yes] file:/packages ./' >"$root/etc/apt/sources.list.d/gpupool.list"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod +x "$root/usr/sbin/policy-rc.d"
  in_system "$root" apt-get update -qq
}

# in_system ROOT COMMAND...
in_system() {
  local root=$1
  shift
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" --propagation private chroot "$root" "$@"
}

# next_revision ROOT: replaces the packages in the system's source by ones of the next revision, with other configuration.
next_revision() {
  local deb tree=$work/next
  for deb in "$1"/packages/*.deb; do
    rm -rf "$tree"
    dpkg-deb -R "$deb" "$tree"
    sed -Ei 's/([0-9])-1\b/\1-2/' "$tree/DEBIAN/control"
    find "$tree" -path '*/etc/gpupool/*.toml' -exec sed -i '$a # of the next revision' {} +
    dpkg-deb --root-owner-group -Znone -b "$tree" "${deb/-1_/-2_}" >/dev/null
    rm "$deb"
  done
  (cd "$1/packages" && dpkg-scanpackages . 2>/dev/null >Packages)
  in_system "$1" apt-get update -qq
}
