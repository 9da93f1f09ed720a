#!/usr/bin/env bash
# Usage: scripts/build.sh [PRESET] [--no-tests] [CMAKE_OPTION...]
# Configures and builds one preset: release (the default), dev, asan, tsan or ci. The result is in build/PRESET.
# --no-tests leaves the tests unbuilt. Further words go to cmake as they are, for example -DGPUPOOL_EXAMPLES=OFF.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release targets=(all)
case ${1:-} in
  -h | --help) usage && exit ;;
  '' | -*) ;;
  *) preset=$1 && shift ;;
esac
if [[ ${1:-} == --no-tests ]]; then targets=(client/all server/all scheduler/all examples/all) && shift; fi

cd "$root"
say "building preset $preset with $jobs jobs"
quietly "build/$preset/configure.log" cmake --preset "$preset" "$@"
quietly "build/$preset/build.log" cmake --build --preset "$preset" -j "$jobs" --target "${targets[@]}"
note "done: build/$preset/bin and build/$preset/lib"
