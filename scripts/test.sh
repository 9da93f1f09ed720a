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

result='^ *[0-9]+/[0-9]+ Test +#[0-9]+: .*'  # a line of ctest's
count() { grep -cE "$1" "$2" || true; }

# tally NAME OUTPUT LOG: adds what a ctest said to the totals; LOG is its LastTest.log.
tally() {
  local where=$1 output=$2 log=$3
  local now_passed now_skipped now_all  # and the caller's now_failed
  now_all=$(count "$result" "$output")
  now_passed=$(count "$result\. +Passed " "$output")
  now_skipped=$(count "$result(\*\*\*Skipped|\*\*\*Not Run \(Disabled\))" "$output")
  now_failed=$((now_all - now_passed - now_skipped))
  passed=$((passed + now_passed)) skipped=$((skipped + now_skipped)) failed=$((failed + now_failed))

  local name reason
  while read -r name; do
    # The reason is what the test itself said, in the part of the log that belongs to it.
    reason=$(awk -v name="$name" '
      / Testing: / { inside = ($3 == name) }
      /^Output:$/ { said = 1; next }
      /^<end of output>/ { said = 0 }
      inside && said && tolower($0) ~ /skip/ { print; exit }' "$log" || true)
    skip_reasons+=("$where: $name: ${reason:-no reason given}")
  done < <(sed -nE "s/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.*\*\*\*(Skipped|Not Run \(Disabled\)).*/\1/p" "$output")
}

# run_tests PRESET [CTEST_OPTION...]: adds to the totals.
run_tests() {
  local build=build/$1 log=build/$1/ctest.log now_failed
  shift
  rm -rf "$build/ctest.status" "$build/softroce"
  say "running the tests of $build"
  { ctest --test-dir "$build" -j "$jobs" --output-on-failure "$@" 2>&1 || echo $? >"$build/ctest.status"; } |
    tee "$log" | grep --line-buffered -vE '^( *Start +[0-9]+:|Test project |Internal ctest |.*\. +Passed )' || true
  tally "$build" "$log" "$build/Testing/Temporary/LastTest.log"
  # ctest can fail without a test that did, for example when a test's program is missing.
  if [[ -e $build/ctest.status ]] && ((now_failed == 0)); then failed=$((failed + 1)); fi

  # The one entry `softroce` stands for the tests of a ctest in a guest: they count, and it only where it failed
  # without one of them.
  local entry
  entry=$(grep -oE '^ *[0-9]+/[0-9]+ Test +#[0-9]+: softroce \.+(\*\*\*| *)[A-Z][a-z]+' "$log" || true)
  if [[ -e $build/softroce/ctest.log && $entry != *Skipped ]]; then
    note "in the guest of 'softroce':"
    grep -E "$result" "$build/softroce/ctest.log" || true
    tally "$build/softroce" "$build/softroce/ctest.log" "$build/softroce/Temporary/LastTest.log"
    if [[ $entry == *Passed ]]; then passed=$((passed - 1)); elif ((now_failed)); then failed=$((failed - 1)); fi
  fi
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
