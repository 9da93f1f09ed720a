#!/usr/bin/env bash
# Usage: scripts/test.sh [--preset NAME] [--sanitizers] [--no-install]
# Installs what is missing, builds a preset (release if none is named) and runs all of its tests. --sanitizers also
# builds with AddressSanitizer + UndefinedBehaviorSanitizer, then with ThreadSanitizer, and runs the tests that are
# not labelled bench or soak (nor fuzz, under ThreadSanitizer). Stops at the first build with a failing test.
# Ends with a line 'N passed, N failed, N skipped'; exits non-zero if a test failed or none ran.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release sanitizers=no install=yes
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --preset)
      [[ -n ${2:-} ]] || die "--preset needs a name"
      preset=$2 && shift
      ;;
    --sanitizers) sanitizers=yes ;;
    --no-install) install=no ;;
    *) die "unknown option '$1'; try --help" ;;
  esac
  shift
done

cd "$root"
passed=0 failed=0 skipped=0
skip_reasons=()

count() { grep -cE "$1" "$2" || true; }

# run_tests PRESET [CTEST_OPTION...]: adds to the totals.
run_tests() {
  local build=build/$1 log=build/$1/ctest.log
  shift
  rm -f "$build/ctest.status"
  say "running the tests of $build"
  { ctest --test-dir "$build" -j "$jobs" --output-on-failure "$@" 2>&1 || echo $? >"$build/ctest.status"; } |
    tee "$log" | grep --line-buffered -vE '^( *Start +[0-9]+:|Test project |Internal ctest |.*\. +Passed )' || true
  local result='^ *[0-9]+/[0-9]+ Test +#[0-9]+: .*'
  local now_passed now_skipped now_all
  now_all=$(count "$result" "$log")
  now_passed=$(count "$result\. +Passed " "$log")
  now_skipped=$(count "$result(\*\*\*Skipped|\*\*\*Not Run \(Disabled\))" "$log")
  passed=$((passed + now_passed)) skipped=$((skipped + now_skipped))
  failed=$((failed + now_all - now_passed - now_skipped))
  # ctest can fail without a test that did, for example when a test's program is missing.
  if [[ -e $build/ctest.status ]] && ((now_all == now_passed + now_skipped)); then
    failed=$((failed + 1))
  fi

  local name reason
  while read -r name; do
    # The reason is what the test itself said, in the part of the log that belongs to it.
    reason=$(awk -v name="$name" '
      / Testing: / { inside = ($3 == name) }
      /^Output:$/ { said = 1; next }
      /^<end of output>/ { said = 0 }
      inside && said && tolower($0) ~ /skip/ { print; exit }' "$build/Testing/Temporary/LastTest.log" || true)
    skip_reasons+=("$build: $name: ${reason:-no reason given}")
  done < <(sed -nE "s/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.*\*\*\*(Skipped|Not Run \(Disabled\)).*/\1/p" "$log")
}

summary() {
  local reason
  if ((${#skip_reasons[@]})); then
    say "skipped, and why"
    for reason in "${skip_reasons[@]}"; do note "$reason"; done
  fi
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  ((failed == 0 && passed > 0))
}

[[ $install == no ]] || scripts/install-dependencies.sh
scripts/build.sh "$preset"
run_tests "$preset"

if [[ $sanitizers == yes ]] && ((failed == 0)); then
  # What nvcc makes does not depend on the preset, so the CUDA programs are taken from the first build.
  reuse=-DGPUPOOL_CUDA_PROGRAMS_FROM=build/$preset
  scripts/build.sh asan "$reuse"
  run_tests asan -LE 'bench|soak'
  if ((failed == 0)); then
    scripts/build.sh tsan "$reuse"
    run_tests tsan -LE 'bench|soak|fuzz'
  fi
fi
summary
