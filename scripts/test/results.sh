# Sourced by scripts/test.sh after common.sh: runs ctest in build folders and adds up the results.
# shellcheck shell=bash disable=SC2154  # test_jobs
# run_tests PRESET [CTEST_OPTION...]   runs the tests of build/PRESET; with retry=yes runs up to 5 failed ones once more
# summary                              prints the totals of all runs

retry=no
passed=0 failed=0 skipped=0
skip_reasons=() unsteady=()

result='^ *[0-9]+/[0-9]+ Test +#[0-9]+: .*'  # a result line of ctest
# count PATTERN FILE: prints how many lines of the file match.
count() { grep -cE "$1" "$2" || true; }

# skipped_cases LOG: prints 'ENTRY: NAME: REASON' for each line 'SKIPPED: NAME: REASON' in the output of an entry.
skipped_cases() {
  awk '
    / Testing: / { entry = $3 }
    /^Output:$/ { said = 1; next }
    /^<end of output>/ { said = 0 }
    said && sub(/^SKIPPED: /, "") && !seen[entry, $0]++ { print entry ": " $0 }' "$1"
}

# tally NAME OUTPUT LOG: adds the results of a ctest run to the totals. LOG is its LastTest.log, which is named LastTest.log.tmp
# until ctest ends.
tally() {
  local where=$1 output=$2 log=$3
  [[ -e $log ]] || log+=.tmp
  [[ -e $log ]] || log=/dev/null
  local now_passed now_skipped now_all  # also sets now_failed of the caller
  now_all=$(count "$result" "$output")
  now_passed=$(count "$result\. +Passed " "$output")
  now_skipped=$(count "$result(\*\*\*Skipped|\*\*\*Not Run \(Disabled\))" "$output")
  now_failed=$((now_all - now_passed - now_skipped))
  passed=$((passed + now_passed)) skipped=$((skipped + now_skipped)) failed=$((failed + now_failed))

  local name reason entries=()
  while read -r name; do
    entries+=("$name")
    # The reason is in the test's own output, in its part of the log.
    reason=$(awk -v name="$name" '
      / Testing: / { inside = ($3 == name) }
      /^Output:$/ { said = 1; next }
      /^<end of output>/ { said = 0 }
      inside && said && tolower($0) ~ /skip/ { print; exit }' "$log" || true)
    skip_reasons+=("$where: $name: ${reason:-no reason given}")
  done < <(sed -nE "s/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.*\*\*\*(Skipped|Not Run \(Disabled\)).*/\1/p" "$output")

  # Test cases skipped in entries that passed or failed. The reasons of skipped entries are already listed.
  while IFS= read -r reason; do
    name=${reason%%: *}
    [[ " ${entries[*]} " == *" $name "* ]] && continue
    skip_reasons+=("$where: $reason")
    skipped=$((skipped + 1))
  done < <(skipped_cases "$log")
}

# count_again FOLDER: corrects the totals by the tests that passed when run again, whose output is in FOLDER/again.log.
count_again() {
  local name
  while read -r name; do
    unsteady+=("$1: $name")
    failed=$((failed - 1)) passed=$((passed + 1)) now_failed=$((now_failed - 1))
  done < <(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.+ +Passed .*/\1/p' "$1/again.log")
}

# run_again BUILD: runs the failed tests of the last ctest run once more, selected by name: ctest's --rerun-failed selects by
# number, and -E changes the numbers. (softroce takes too long; its guest does so itself.)
run_again() {
  local failures=$1/Testing/Temporary/LastTestsFailed.log names
  names=$(sed -E 's/^[0-9]+://; s/[][\.*^$+?(){}|]/\\&/g' "$failures" | grep -vxE 'softroce(\.soak)?' | paste -sd '|') || return 0
  say "running the failed tests of $1 again, one at a time"
  ctest --test-dir "$1" -R "^($names)\$" --output-on-failure 2>&1 | tee "$1/again.log" || true
  count_again "$1"
}

# run_tests PRESET [CTEST_OPTION...]: runs the tests of a build and adds the results to the totals.
run_tests() {
  local build=build/$1 log=build/$1/ctest.log now_failed
  shift
  rm -rf "$build/ctest.status" "$build/softroce" "$build/softroce.soak"
  say "running the tests of $build"
  { ctest --test-dir "$build" -j "$test_jobs" --output-on-failure "$@" 2>&1 || echo $? >"$build/ctest.status"; } |
    tee "$log" | grep --line-buffered -vE '^( *Start +[0-9]+:|Test project |Internal ctest |.*\. +Passed )' || true
  tally "$build" "$log" "$build/Testing/Temporary/LastTest.log"
  # ctest can fail without a failed test, for example if a test's program is missing.
  if [[ -e $build/ctest.status ]] && ((now_failed == 0)); then failed=$((failed + 1)); fi
  if [[ $retry == yes ]] && ((now_failed > 0 && now_failed <= 5)); then run_again "$build"; fi
  tally_guest "$build" softroce
  tally_guest "$build" softroce.soak
}

# tally_guest BUILD ENTRY: the entry stands for the tests of a ctest run in a guest. Counts those tests instead of the entry,
# unless it failed without a failed test.
tally_guest() {
  local logs=$1/$2 entry now_failed
  entry=$(grep -oE "^ *[0-9]+/[0-9]+ Test +#[0-9]+: ${2/./\\.} \.+(\*\*\*| *)[A-Z][a-z]+" "$1/ctest.log" || true)
  [[ -e $logs/ctest.log && $entry != *Skipped ]] || return 0
  note "in the guest of '$2':"
  grep -E "$result" "$logs/ctest.log" || true
  tally "$logs" "$logs/ctest.log" "$logs/Temporary/LastTest.log"
  [[ ! -e $logs/again.log ]] || count_again "$logs"
  if [[ $entry == *Passed ]]; then passed=$((passed - 1)); elif ((now_failed)); then failed=$((failed - 1)); fi
}

# Prints unsteady and skipped tests and the totals. Exit status 1: a test failed, or none passed.
summary() {
  local reason
  if ((${#unsteady[@]})); then
    say "unsteady tests: failed at first, passed when run again alone"
    for reason in "${unsteady[@]}"; do note "$reason"; done
  fi
  if ((${#skip_reasons[@]})); then
    say "skipped tests and reasons"
    for reason in "${skip_reasons[@]}"; do note "$reason"; done
  fi
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  ((failed == 0 && passed > 0))
}
