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

# The mirror of Debian that this machine uses.
mirror() {
  # shellcheck disable=SC2016  # variables of apt
  apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL)' 'Created-By: Packages' | awk '$2 == "Debian" && $3 == "Debian" && !uri { uri = $1 } END { print uri }'
}

# Skips unless packages that were made here can be installed in the release.
check_release() {
  local here
  # shellcheck disable=SC1091
  here=$(. /etc/os-release && echo "${VERSION_ID:-}")
  case $release:$here in bookworm:1[3-9] | trixie:1[4-9]) skip "packages that were made on Debian $here are not for $release" ;; esac
}

# make_system ROOT PACKAGE...: the smallest system with apt, and the given packages.
make_system() {
  local root=$1 uri include source keys=/usr/share/keyrings/debian-archive-keyring.gpg
  shift
  ((EUID == 0)) || skip "needs root"
  command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed (scripts/install-dependencies.sh --soak)"
  check_release
  uri=$(mirror)
  [[ -n $uri ]] || skip "this machine has no source of Debian's packages"
  [[ $uri != https:* ]] || set -- ca-certificates "$@"
  include=$(IFS=,; echo "$*")
  # The same in the system, where its package of keys has this file: newer releases trust no keys unless a source names them.
  source="deb [signed-by=$keys] $uri $release main"
  [[ -f $keys ]] || source="deb $uri $release main"
  use_proxy
  umask 022
  mmdebstrap --variant=apt ${include:+--include="$include"} "$release" "$root" "$source" >"$work/mmdebstrap.log" 2>&1 || {
    if grep -qE 'Could not (resolve|connect)|Connection|NO_PUBKEY|Temporary failure|unable to resolve|does not have a Release file' "$work/mmdebstrap.log"; then
      skip "mmdebstrap cannot get $release: $(tail -n 1 "$work/mmdebstrap.log")"
    fi
    fail "mmdebstrap: $(tail -n 20 "$work/mmdebstrap.log")"
  }
  rm -f "$root/etc/resolv.conf"  # may be a link to nothing
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  [[ $uri != https:* ]] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"  # an authority of this machine's own
  mkdir "$root/packages"
  cp "$made"/*.deb "$made/Packages" "$root/packages/"
  echo 'deb [trusted=yes] file:/packages ./' >"$root/etc/apt/sources.list.d/gpupool.list"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod +x "$root/usr/sbin/policy-rc.d"
  apt_get "$root" update
}

# The proxy of this machine's apt is in a file that the system has not.
use_proxy() {
  local proxy=''
  [[ -z ${http_proxy:-} ]] || return 0
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  [[ -z $proxy || $proxy == DIRECT ]] || export http_proxy=$proxy
}

# in_system ROOT COMMAND...: with this machine's devices and a /proc; both go with the command, and so do its processes.
in_system() {
  # shellcheck disable=SC2016  # variables of the shell that it starts
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive no_proxy=127.0.0.1 \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    unshare --mount --pid --fork --kill-child --propagation private \
    sh -c 'mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc" && exec chroot "$@"' sh "$@"
}

# apt_get ROOT WORD...: quietly; shows the output if it fails.
apt_get() {
  local root=$1
  shift
  in_system "$root" apt-get -qq -y --no-install-recommends -o Dpkg::Options::=--force-confold "$@" >"$work/apt.log" 2>&1 ||
    fail "apt-get $*: $(<"$work/apt.log")"
}

# A file that next_revision moves from gpupool-common to gpupool-client.
moving=usr/share/doc/gpupool-common/changelog.gz

# next_revision ROOT: replaces the packages in the system's source by ones of the next revision, with other configuration.
next_revision() {
  local deb version tree=$work/next
  for deb in "$1"/packages/*.deb; do
    rm -rf "$tree"
    dpkg-deb -R "$deb" "$tree"
    version=$(dpkg-deb -f "$deb" Version)
    sed -i "s/${version//./\\.}/${version%-1}-2/g" "$tree/DEBIAN/control"  # also in relations to the other packages
    case ${deb##*/} in
      gpupool-common_*) rm "$tree/$moving" ;;
      gpupool-client_*) mkdir -p "$tree/${moving%/*}" && echo moved >"$tree/$moving" ;;
    esac
    find "$tree" -path '*/etc/gpupool/*.toml' -exec sed -i '$a # of the next revision' {} +
    dpkg-deb --root-owner-group -Znone -b "$tree" "${deb/-1_/-2_}" >/dev/null
    rm "$deb"
  done
  (cd "$1/packages" && dpkg-scanpackages . 2>/dev/null >Packages)
  apt_get "$1" update
}
