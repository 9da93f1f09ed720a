#!/usr/bin/env bash
# Usage: scripts/demo.sh [--no-install]
# Shows gpupool at work on this machine, with no GPU: installs what is missing, builds the release preset, and then
#   1. starts poold on softgpu (a CUDA device on the CPU), runs every CUDA example through the client library, and shows
#      that the program itself holds no device;
#   2. makes a pool of two GPU hosts with a scheduler, in which programs of three tenants get their GPUs by lease.
# It fails if anything of that is not so. --no-install leaves the machine's packages alone.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=scripts/demo/one_gpu.sh
source "$root/scripts/demo/one_gpu.sh"
# shellcheck source=scripts/demo/pool.sh
source "$root/scripts/demo/pool.sh"

install=yes
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --no-install) install=no ;;
    *) die "unknown option '$1'; try --help" ;;
  esac
  shift
done

build=$root/build/release
output=$root/build/demo
[[ $install == no ]] || "$root/scripts/install-dependencies.sh"
"$root/scripts/build.sh" release --no-tests
[[ -x $build/examples/vector_add ]] || die "the examples were not built: is there an nvcc? See $build/configure.log"
rm -rf "$output"
mkdir -p "$output"
cd "$output"

trap 'cleanup_one_gpu; cleanup_pool' EXIT

say "1. one GPU host"
show_one_gpu
mkdir pool
cd pool
say "2. a pool of two GPU hosts"
show_pool
say "${green}all of it is as it should be$plain; pictures and logs are in build/demo"
