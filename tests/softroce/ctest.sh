#!/usr/bin/env bash
# Usage: tests/softroce/ctest.sh BUILD_FOLDER LABEL [CTEST_OPTION...]
# Runs the tests of a build folder with this label in the guest. ctest's logs are written to BUILD_FOLDER/softroce/. Its
# output is prefixed with "guest: ", so that it is not mistaken for output of the ctest that started this script.
# Exit status: that of ctest, or of run.sh if the guest could not be started.
# With GPUPOOL_TEST_RETRY=yes, failed tests run once more, alone; that output is in BUILD_FOLDER/softroce/again.log, and its
# lines here begin with "again: ". scripts/test.sh --retry sets it.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
build=$(realpath "$1") label=$2
shift 2
logs=$build/softroce
rm -rf "$logs" && mkdir -p "$logs"
# shellcheck disable=SC2016  # expanded in the guest
"$here/run.sh" --timeout 2400 --writable "$logs" -- bash -c '
  build=$1 label=$2 retry=$3
  shift 3
  mkdir -p "$build/Testing" && mount --bind "$build/softroce" "$build/Testing" &&
  ctest --test-dir "$build" -L "^$label\$" -j 2 --no-tests=error --output-on-failure "$@" && exit
  status=$?
  [[ $retry == yes ]] || exit $status
  ctest --test-dir "$build" --rerun-failed --output-on-failure >"$build/Testing/again.log" 2>&1
  status=$?
  sed "s/^/again: /" "$build/Testing/again.log"
  exit $status
' guest "$build" "$label" "${GPUPOOL_TEST_RETRY:-no}" "$@" 2>&1 | tee "$logs/ctest.log" | sed -u 's/^/guest: /'
