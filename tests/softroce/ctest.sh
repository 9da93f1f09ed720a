#!/usr/bin/env bash
# Usage: tests/softroce/ctest.sh [--logs NAME] [--timeout SECONDS] BUILD_FOLDER LABEL [CTEST_OPTION...]
# Runs the tests of a build folder with this label in the guest, which ends after SECONDS (2400). ctest's logs are written to
# BUILD_FOLDER/NAME (softroce). Its output is prefixed with "guest: ", so that it is not mistaken for output of the ctest that started this script.
# Exit status: that of ctest, or of run.sh if the guest could not be started.
# With GPUPOOL_TEST_RETRY=yes, failed tests run once more, alone; that output is in BUILD_FOLDER/softroce/again.log, and its
# lines here begin with "again: ". scripts/test.sh --retry sets it.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
name=softroce seconds=2400
while [[ ${1:-} == --* ]]; do
  case $1 in
    --logs) name=$2 ;;
    --timeout) seconds=$2 ;;
    *) echo "ctest.sh: unknown option '$1'" >&2 && exit 2 ;;
  esac
  shift 2
done
build=$(realpath "$1") label=$2
shift 2
logs=$build/$name
rm -rf "$logs" && mkdir -p "$logs"
# shellcheck disable=SC2016  # expanded in the guest
"$here/run.sh" --timeout "$seconds" --writable "$logs" -- bash -c '
  build=$1 logs=$2 label=$3 retry=$4
  shift 4
  mkdir -p "$build/Testing" && mount --bind "$logs" "$build/Testing" &&
  ctest --test-dir "$build" -L "^$label\$" -j 2 --no-tests=error --output-on-failure "$@" && exit
  status=$?
  [[ $retry == yes ]] || exit $status
  ctest --test-dir "$build" --rerun-failed --output-on-failure >"$build/Testing/again.log" 2>&1
  status=$?
  sed "s/^/again: /" "$build/Testing/again.log"
  exit $status
' guest "$build" "$logs" "$label" "${GPUPOOL_TEST_RETRY:-no}" "$@" 2>&1 | tee "$logs/ctest.log" | sed -u 's/^/guest: /'
