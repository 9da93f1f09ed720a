#!/usr/bin/env bash
# Usage: scripts/install-dependencies.sh [--no-tests] [--no-cuda] [--bundle] [--packages] [--soak] [--fuzzers]
# Installs the missing packages for gpupool's build and tests. For Debian 12 or newer; Ubuntu 24.04 or newer is expected
# to work, but was not tried. All packages come from the distribution; returns quickly if none is missing. Uses sudo if
# not run as root.
# --no-tests   leaves out the packages that only the tests need (etcd, QEMU, perftest, ...)
# --no-cuda    does not install CUDA. By default the distribution's nvidia-cuda-toolkit is installed (several GB; needs no
#              GPU or driver), unless nvcc is on PATH, in CUDA_HOME or in /usr/local/cuda
# --bundle     adds the packages for scripts/make-bundle.sh
# --packages   adds the packages for scripts/package.sh
# --soak       adds the packages for tests/packages/ with the label soak (mmdebstrap, systemd-container)
# --fuzzers    adds clang with libFuzzer, if the distribution has version 16 or newer
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export DEBIAN_FRONTEND=noninteractive

want_tests=yes want_cuda=yes want_bundle=no want_packages=no want_soak=no want_fuzzers=no
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --no-tests) want_tests=no ;;
    --no-cuda) want_cuda=no ;;
    --bundle) want_bundle=yes ;;
    --packages) want_packages=yes ;;
    --soak) want_soak=yes ;;
    --fuzzers) want_fuzzers=yes ;;
    *) die "unknown option '$1'; try --help" ;;
  esac
  shift
done

missing=()
# need THING PACKAGE: adds PACKAGE to `missing` if THING is missing: a command, or the path (with wildcards) of a file of the
# package. Several calls may name the same package.
need() {
  case $1 in
    /*) compgen -G "$1" >/dev/null && return ;;
    *) command -v "$1" >/dev/null && return ;;
  esac
  [[ " ${missing[*]} " == *" $2 "* ]] || missing+=("$2")
}

as_root() {
  if ((EUID == 0)); then "$@"; else sudo --preserve-env=DEBIAN_FRONTEND "$@"; fi
}

updated=no
update_lists() {
  [[ $updated == no ]] || return 0
  say "apt-get update"
  as_root apt-get update -qq
  updated=yes
}

installable() { [[ $(apt-cache policy "$1" 2>/dev/null) == *"Candidate: "[!\(]* ]]; }

install() {
  say "installing $*"
  note "$(as_root apt-get install --no-install-recommends --assume-no "$@" 2>/dev/null | grep '^Need to get' || true)"
  # apt-get's status lines are KIND:PACKAGE:PERCENT:TEXT. A shell run as root opens descriptor 3 for them, because sudo
  # would close it.
  as_root sh -c 'apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 -o APT::Status-Fd=3 "$@" 3>&1 >/dev/null' sh "$@" |
    sed -unE 's/^(dl|pm)status:[^:]*:([0-9]+)[0-9.]*:(.*)/\1 \2 \3/p' |
    { while read -r kind percent text; do
      # apt-get counts from 0 to 100 for the download and again for the installation.
      if [[ $kind == dl ]]; then echo "$((percent / 2)) $text"; else echo "$((50 + percent / 2)) $text"; fi
    done; } | show_progress
}

# Prints the package of the oldest supported LLVM, which is the closest to the version used in development.
oldest_llvm() {
  local version
  for version in 15 16 17 18 19; do
    if installable "llvm-$version-dev"; then echo "llvm-$version-dev" && return; fi
  done
  die "this release has no LLVM from 15 to 19"
}

# Prints the packages of the oldest clang that has libFuzzer and is new enough, or nothing if the distribution has none.
clang_packages() {
  local version
  for version in 16 17 18 19; do
    if installable "libclang-rt-$version-dev"; then echo "clang-$version libclang-rt-$version-dev llvm-$version" && return; fi
  done
}

# Searches the same places as cmake/dependencies.cmake.
find_nvcc() { command -v nvcc "${CUDA_HOME:-/none}/bin/nvcc" /usr/local/cuda/bin/nvcc | head -n 1; }
have_nvcc() { [[ -n $(find_nvcc) ]]; }
# Succeeds if the toolkit's cuda.h is from CUDA 13.0 or newer; otherwise cmake downloads that header with Python
# (cmake/dependencies.cmake).
has_new_headers() {
  local release
  release=$("$(find_nvcc)" --version 2>/dev/null | sed -nE 's/.*release ([0-9]+)\..*/\1/p') || return
  ((${release:-0} >= 13))
}

# Debian keeps NVIDIA's toolkit in non-free, Ubuntu in multiverse; neither is always enabled.
enable_cuda_component() {
  local id codename components keyring uri
  # shellcheck disable=SC1091
  id=$(. /etc/os-release && echo "$ID") codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  case $id in
    debian) components="contrib non-free" keyring=/usr/share/keyrings/debian-archive-keyring.gpg ;;
    ubuntu) components="universe multiverse" keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg ;;
    *) die "this is '$id', not Debian or Ubuntu: install the CUDA toolkit (11.8 or newer) manually" ;;
  esac
  # The mirror that this machine already uses for the release.
  # shellcheck disable=SC2016  # variables of apt
  uri=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
    awk -v codename="$codename" '$2 == codename && !uri { uri = $1 } END { print uri }')
  [[ -n $uri ]] || die "no package source for '$codename' is configured"
  say "enabling '$components' of $uri in /etc/apt/sources.list.d/gpupool-cuda.sources"
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\nSigned-By: %s\n' \
    "$uri" "$codename" "$components" "$keyring" |
    as_root tee /etc/apt/sources.list.d/gpupool-cuda.sources >/dev/null
  updated=no
  update_lists
}

multiarch=$(uname -m)-linux-gnu
need g++ g++
need cmake cmake
need ninja ninja-build
need protoc protobuf-compiler
need /usr/include/google/protobuf/message_lite.h libprotobuf-dev
need /usr/include/protozero/pbf_reader.hpp libprotozero-dev
need /usr/include/spdlog/spdlog.h libspdlog-dev
need /usr/include/CLI/CLI.hpp libcli11-dev
need /usr/include/asio.hpp libasio-dev
need /usr/include/toml++/toml.h libtomlplusplus-dev
need '/usr/include/boost/context/fiber.hpp' libboost-context-dev
need "/usr/lib/$multiarch/libboost_context.*" libboost-context-dev
need /usr/include/lz4.h liblz4-dev
need /usr/include/zstd.h libzstd-dev
need /usr/include/zlib.h zlib1g-dev
need /usr/include/openssl/ssl.h libssl-dev
need openssl openssl
need /usr/include/grpcpp/grpcpp.h libgrpc++-dev
need grpc_cpp_plugin protobuf-compiler-grpc
need /usr/include/prometheus/registry.h prometheus-cpp-dev
need /usr/include/nlohmann/json.hpp nlohmann-json3-dev
need /usr/include/sqlite3.h libsqlite3-dev
need "/usr/include/*/curl/curl.h" libcurl4-openssl-dev
need /usr/include/seccomp.h libseccomp-dev
need /usr/include/infiniband/verbs.h libibverbs-dev  # headers only: the libraries are loaded with dlopen
need /usr/include/rdma/rdma_cma.h librdmacm-dev
need '/usr/lib/llvm-1[5-9]/lib/cmake/llvm/LLVMConfig.cmake' llvm
need_python() { python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv); }
need_for_packages() {
  need patchelf patchelf
  need dpkg-shlibdeps dpkg-dev
  need rpmbuild rpm
}
need_for_tests() {
  need_for_packages  # tests/packages
  need systemd-analyze systemd  # tests/packages
  need '/usr/include/catch2/catch*.hpp' catch2
  need '/usr/*bin/ip' iproute2  # tests/chaos
  need zstd zstd  # archives of fuzzer inputs
  need ld.lld lld  # tests/CMakeLists.txt
  need clang-format-16 clang-format-16  # scripts/format.sh
  need clang-tidy clang-tidy  # scripts/lint.sh
  need shellcheck shellcheck  # scripts/checks/scripts.py
  need pyflakes3 pyflakes3  # scripts/checks/scripts.py
  need_python
  need podman podman  # this and the next three, and patchelf: tests/containers
  need runc runc
  need /usr/lib/podman/netavark netavark
  need '/usr/*bin/iptables' iptables
  need chromium chromium  # this and the next: tests/scheduler/web
  need '/usr/share/fonts/truetype/*' fonts-dejavu-core
  need etcd etcd-server  # tests of several schedulers
  need etcdctl etcd-client  # tests of several schedulers
  need /usr/include/slurm/spank.h libslurm-dev  # this and the next: the plugin for Slurm, and tests/slurm/
  need /usr/sbin/slurmctld slurmctld
  need /usr/sbin/slurmd slurmd
  need /usr/sbin/slurmdbd slurmdbd
  need /usr/sbin/munged munge
  need /usr/sbin/mariadbd mariadb-server
  [[ $(uname -m) == x86_64 ]] || return 0
  need qemu-system-x86_64 qemu-system-x86  # this and the rest: the guest with Soft-RoCE devices, tests/softroce/
  need /usr/share/doc/busybox-static/copyright busybox-static
  need '/usr/*bin/rdma' iproute2
  need '/usr/*bin/depmod' kmod
  need "/usr/lib/$multiarch/libibverbs/librxe-*.so" ibverbs-providers
  need ib_send_lat perftest
  need xz xz-utils
}
if [[ $want_tests == yes ]]; then need_for_tests; elif ! has_new_headers; then need_python; fi
if [[ $want_bundle == yes ]]; then need patchelf patchelf; fi
if [[ $want_packages == yes ]]; then need_for_packages; fi
if [[ $want_soak == yes ]]; then
  need mmdebstrap mmdebstrap
  need mount mount
  need /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
  need systemd-nspawn systemd-container
fi
if [[ $want_fuzzers == yes ]]; then need '/usr/lib/llvm-1[6-9]/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a' clang; fi

if ((${#missing[@]})); then
  command -v apt-get >/dev/null || die "apt-get not found; install these packages: ${missing[*]}"
  for package in "${missing[@]}"; do
    if [[ $package == llvm ]]; then package=llvm-15-dev; fi  # only to check whether apt has package lists
    if [[ $package == clang ]]; then package=libclang-rt-16-dev; fi
    installable "$package" || update_lists
  done
  packages=()
  for package in "${missing[@]}"; do
    [[ $package != llvm ]] || package=$(oldest_llvm)
    if [[ $package == clang ]]; then
      read -ra clang < <(clang_packages) || true
      ((${#clang[@]})) || note "this release has no clang 16 or newer: the fuzzers will not be guided by coverage"
      packages+=("${clang[@]}")
      continue
    fi
    if [[ $package == clang-format-16 ]] && ! installable "$package"; then
      note "this release has no clang-format-16: the format of the sources will not be checked"
      continue
    fi
    installable "$package" || die "this release has no package '$package'"
    packages+=("$package")
  done
  # Package lists may be older than the mirror: retries once with updated lists.
  ((!${#packages[@]})) || install "${packages[@]}" || { updated=no && update_lists && install "${packages[@]}"; }
  # These packages start services, which are not needed: tests start their own.
  for pair in etcd-server:etcd munge:munge mariadb-server:mariadb; do
    if [[ " ${packages[*]} " == *" ${pair%:*} "* && -d /run/systemd/system ]]; then as_root systemctl disable --now --quiet "${pair#*:}.service"; fi
  done
fi

if [[ $want_cuda == yes ]] && ! have_nvcc; then
  command -v apt-get >/dev/null || die "apt-get not found: install the CUDA toolkit manually"
  installable nvidia-cuda-toolkit || update_lists
  installable nvidia-cuda-toolkit || enable_cuda_component
  installable nvidia-cuda-toolkit || die "this release has no nvidia-cuda-toolkit: install CUDA manually"
  cuda_packages=(nvidia-cuda-toolkit)
  installable nvidia-cuda-toolkit-gcc && cuda_packages+=(nvidia-cuda-toolkit-gcc)  # a g++ that this nvcc supports
  install "${cuda_packages[@]}"
fi
note "all dependencies are installed"
