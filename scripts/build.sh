#!/usr/bin/env bash
# Usage: scripts/build.sh [PRESET] [--no-tests] [CMAKE_OPTION...]
# Configures and builds one preset: release (the default), dev, asan, tsan or ci. The result is in build/PRESET.
# --no-tests leaves out the tests and the packages that only they need. Further options are passed to cmake, for
# example -DGPUPOOL_EXAMPLES=OFF.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release tests=ON
case ${1:-} in
  -h | --help) usage && exit ;;
  '' | -*) ;;
  *) preset=$1 && shift ;;
esac
if [[ ${1:-} == --no-tests ]]; then tests=OFF && shift; fi

cd "$root"
say "building preset $preset with $jobs jobs"
quietly "build/$preset/configure.log" cmake --preset "$preset" "-DGPUPOOL_TESTS=$tests" "$@"
log=build/$preset/build.log
# ninja's lines begin with [STEPS DONE/TOTAL STEPS].
if ! cmake --build --preset "$preset" -j "$jobs" 2>&1 | tee "$log" |
  sed -unE 's|^\[([0-9]+)/([0-9]+)\].*|\1 \2|p' |
  { while read -r ready all; do echo "$((100 * ready / all)) $ready of $all build steps"; done; } | show_progress; then
  tail -n 60 "$log" >&2
  die "the build failed; all of its output is in $log"
fi
note "done: build/$preset/bin and build/$preset/lib"
