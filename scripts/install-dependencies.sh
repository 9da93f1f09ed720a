#!/usr/bin/env bash
# Usage: scripts/install-dependencies.sh [--no-cuda] [--bundle]
# Installs what gpupool's build needs and this machine lacks: Debian 12 or newer, Ubuntu 24.04 or newer.
# Everything comes from the distribution; does nothing, quickly, when nothing is missing. Uses sudo when not root.
# CUDA is left alone where nvcc is on PATH, in CUDA_HOME or in /usr/local/cuda; otherwise the distribution's own
# nvidia-cuda-toolkit is installed (several GB; no GPU or driver is needed). --no-cuda skips that. --bundle adds what
# scripts/make-bundle.sh needs.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export DEBIAN_FRONTEND=noninteractive

want_cuda=yes want_bundle=no
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --no-cuda) want_cuda=no ;;
    --bundle) want_bundle=yes ;;
    *) die "unknown option '$1'; try --help" ;;
  esac
  shift
done

missing=()
# need THING PACKAGE: THING is a command, or the path (with wildcards) of a file that the package brings.
need() {
  case $1 in
    /*) compgen -G "$1" >/dev/null && return ;;
    *) command -v "$1" >/dev/null && return ;;
  esac
  missing+=("$2")
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
  as_root apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "$@" >/dev/null
}

# The oldest LLVM that will do is the one closest to what the project is developed with.
oldest_llvm() {
  local version
  for version in 15 16 17 18 19; do
    if installable "llvm-$version-dev"; then echo "llvm-$version-dev" && return; fi
  done
  die "this release has no LLVM from 15 to 19"
}

have_nvcc() {
  command -v nvcc >/dev/null || compgen -G '/usr/local/cuda*/bin/nvcc' >/dev/null ||
    [[ -x ${CUDA_HOME:-/none}/bin/nvcc ]]
}

# Debian keeps NVIDIA's toolkit in non-free, Ubuntu in multiverse; neither is always enabled.
enable_cuda_component() {
  local id codename components keyring uri
  # shellcheck disable=SC1091
  id=$(. /etc/os-release && echo "$ID") codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  case $id in
    debian) components="contrib non-free" keyring=/usr/share/keyrings/debian-archive-keyring.gpg ;;
    ubuntu) components="universe multiverse" keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg ;;
    *) die "this is '$id', not Debian or Ubuntu: install the CUDA toolkit (11.8 or newer) by hand" ;;
  esac
  # The mirror that this machine already uses for the release.
  # shellcheck disable=SC2016  # these are apt's own variables
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
need ccache ccache
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
need /usr/include/openssl/ssl.h libssl-dev
need openssl openssl
need /usr/include/grpcpp/grpcpp.h libgrpc++-dev
need grpc_cpp_plugin protobuf-compiler-grpc
need /usr/include/prometheus/registry.h prometheus-cpp-dev
need /usr/include/nlohmann/json.hpp nlohmann-json3-dev
need /usr/include/sqlite3.h libsqlite3-dev
need '/usr/*bin/ip' iproute2  # tests/chaos
need /usr/include/seccomp.h libseccomp-dev
need /usr/include/infiniband/verbs.h libibverbs-dev  # headers only: the libraries are loaded when wanted
need /usr/include/rdma/rdma_cma.h librdmacm-dev
need '/usr/include/catch2/catch*.hpp' catch2
# Of Debian's own python3; one from elsewhere brings what a virtual environment needs.
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
need etcd etcd-server  # this and the next: for tests of several schedulers
need etcdctl etcd-client
need '/usr/lib/llvm-1[5-9]/lib/cmake/llvm/LLVMConfig.cmake' llvm
if [[ $(uname -m) == x86_64 ]]; then  # the guest with Soft-RoCE devices, tests/softroce/
  need qemu-system-x86_64 qemu-system-x86
  need /usr/share/doc/busybox-static/copyright busybox-static
  need '/usr/*bin/rdma' iproute2
  need '/usr/*bin/depmod' kmod
  need "/usr/lib/$multiarch/libibverbs/librxe-*.so" ibverbs-providers
  need ib_send_lat perftest
  need xz xz-utils
  need zstd zstd
fi
if [[ $want_bundle == yes ]]; then need patchelf patchelf; fi

if ((${#missing[@]})); then
  command -v apt-get >/dev/null || die "no apt-get here; needed packages: ${missing[*]}"
  for package in "${missing[@]}"; do
    if [[ $package == llvm ]]; then package=llvm-15-dev; fi  # asked for only to see whether the lists are there
    installable "$package" || update_lists
  done
  packages=()
  for package in "${missing[@]}"; do
    [[ $package != llvm ]] || package=$(oldest_llvm)
    installable "$package" || die "this release has no package '$package'"
    packages+=("$package")
  done
  # Package lists may be older than the mirror: on a failure, one more try with fresh ones.
  install "${packages[@]}" || { updated=no && update_lists && install "${packages[@]}"; }
  # Its package starts a service, which nobody has asked for: tests start their own.
  if [[ " ${packages[*]} " == *" etcd-server "* && -d /run/systemd/system ]]; then as_root systemctl disable --now --quiet etcd.service; fi
fi

if [[ $want_cuda == yes ]] && ! have_nvcc; then
  command -v apt-get >/dev/null || die "no apt-get here: install the CUDA toolkit by hand"
  installable nvidia-cuda-toolkit || update_lists
  installable nvidia-cuda-toolkit || enable_cuda_component
  installable nvidia-cuda-toolkit || die "this release has no nvidia-cuda-toolkit: install CUDA by hand"
  cuda_packages=(nvidia-cuda-toolkit)
  installable nvidia-cuda-toolkit-gcc && cuda_packages+=(nvidia-cuda-toolkit-gcc)  # a g++ that this nvcc accepts
  install "${cuda_packages[@]}"
fi
note "all dependencies are there"
