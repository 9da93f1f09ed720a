#!/usr/bin/env bash
# Usage: scripts/demo.sh [--preset NAME] [--no-install]
# Demonstrates gpupool on this machine, without a GPU: installs missing packages, builds a preset (default: release)
# without its tests, and then
#   1. starts poold on softgpu (a CUDA device on the CPU), runs every CUDA example through the client library, and shows
#      that the program itself has not loaded a device;
#   2. makes a pool of two GPU hosts with a scheduler, in which programs of three tenants get their GPUs by lease; one keeps
#      counting while its host is emptied and poold is upgraded.
# Fails if any step has an unexpected result. --no-install does not install packages.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=scripts/demo/one_gpu.sh
source "$root/scripts/demo/one_gpu.sh"
# shellcheck source=scripts/demo/pool.sh
source "$root/scripts/demo/pool.sh"

preset=release install=yes
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --preset)
      [[ -n ${2:-} ]] || die "--preset needs a name"
      preset=$2 && shift
      ;;
    --no-install) install=no ;;
    *) die "unknown option '$1'; try --help" ;;
  esac
  shift
done

build=$root/build/$preset
output=$root/build/demo
[[ $install == no ]] || "$root/scripts/install-dependencies.sh" --no-tests
"$root/scripts/build.sh" "$preset" --no-tests
[[ -x $build/examples/vector_add ]] || die "the examples were not built: is there an nvcc? See build/$preset/configure.log"
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
say "${green}both parts passed$plain in ${SECONDS} s; images and logs are in build/demo"
say "what to try next"
note "your own program:    nvcc program.cu -o program
    start a server:      build/$preset/bin/poold --listen tcp://127.0.0.1:9700 --device softgpu
    run the program:     build/$preset/bin/pool-run --server tcp://127.0.0.1:9700 -- ./program
    its GPUs:            build/$preset/bin/pool-run --server tcp://127.0.0.1:9700 -- build/$preset/bin/pool-smi
    tenants and quotas:  docs/operations.md      Python, PyTorch:  docs/python.md      all tests:  scripts/test.sh"
