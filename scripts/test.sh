#!/usr/bin/env bash
# Usage: scripts/test.sh [--preset NAME] [--soak] [--sanitizers[=quick]] [--retry] [--no-install]
# Installs missing packages, builds a preset (default: release) and runs all of its tests. --soak also runs the same tests
# for much longer where that finds more (label soak: cut connections, moved sessions). --sanitizers then also builds
# with AddressSanitizer + UndefinedBehaviorSanitizer, then with ThreadSanitizer, and runs the tests that are not labelled
# bench or soak (nor fuzz, with ThreadSanitizer). Stops at the first build with a failing test.
# --sanitizers=quick instead builds and runs only the fuzzers and the unit tests of code that reads untrusted bytes, with
# AddressSanitizer + UndefinedBehaviorSanitizer.
# With both options the fuzzers are guided by coverage (libFuzzer) if clang 16 or newer is installed, and start from the
# repository's inputs (tests/fuzz/corpora). Otherwise they mutate their seeds at random, and the end of the output says so.
# --retry runs tests that failed once more, one at a time, if they are at most 5. Those that pass then count as passed; the
# output of both runs and a list at the end show them, because each is a mistake of the test or of the product.
# The output ends with the reason of each skipped test and a line 'N passed, N failed, N skipped'. Test cases that were
# skipped in an entry that ran others (lines 'SKIPPED: NAME: REASON') are listed and counted too. Exits with 1 if a test
# failed or none ran.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release sanitizers=no install=yes retry=no soak=no
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --preset)
      [[ -n ${2:-} ]] || die "--preset needs a name"
      preset=$2 && shift
      ;;
    --soak) soak=yes ;;
    --sanitizers) sanitizers=yes ;;
    --sanitizers=quick) sanitizers=quick ;;
    --retry) retry=yes && export GPUPOOL_TEST_RETRY=yes ;;
    --no-install) install=no ;;
    *) die "unknown option '$1'; try --help" ;;
  esac
  shift
done

cd "$root"
passed=0 failed=0 skipped=0
unguided=no  # the fuzzers ran without coverage
skip_reasons=() unsteady=()

result='^ *[0-9]+/[0-9]+ Test +#[0-9]+: .*'  # a result line of ctest
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

# run_again BUILD: runs the failed tests of the last ctest run once more. (softroce takes too long; its guest does so itself.)
run_again() {
  say "running the failed tests of $1 again, one at a time"
  ctest --test-dir "$1" --rerun-failed -E '^softroce$' --output-on-failure 2>&1 | tee "$1/again.log" || true
  count_again "$1"
}

# run_tests PRESET [CTEST_OPTION...]: runs the tests of a build and adds the results to the totals.
run_tests() {
  local build=build/$1 log=build/$1/ctest.log now_failed
  shift
  rm -rf "$build/ctest.status" "$build/softroce"
  say "running the tests of $build"
  { ctest --test-dir "$build" -j "$test_jobs" --output-on-failure "$@" 2>&1 || echo $? >"$build/ctest.status"; } |
    tee "$log" | grep --line-buffered -vE '^( *Start +[0-9]+:|Test project |Internal ctest |.*\. +Passed )' || true
  tally "$build" "$log" "$build/Testing/Temporary/LastTest.log"
  # ctest can fail without a failed test, for example if a test's program is missing.
  if [[ -e $build/ctest.status ]] && ((now_failed == 0)); then failed=$((failed + 1)); fi
  if [[ $retry == yes ]] && ((now_failed > 0 && now_failed <= 5)); then run_again "$build"; fi

  # The entry `softroce` stands for the tests of a ctest run in a guest. Those tests are counted instead of the entry,
  # unless it failed without a failed test.
  local entry
  entry=$(grep -oE '^ *[0-9]+/[0-9]+ Test +#[0-9]+: softroce \.+(\*\*\*| *)[A-Z][a-z]+' "$log" || true)
  if [[ -e $build/softroce/ctest.log && $entry != *Skipped ]]; then
    note "in the guest of 'softroce':"
    grep -E "$result" "$build/softroce/ctest.log" || true
    tally "$build/softroce" "$build/softroce/ctest.log" "$build/softroce/Temporary/LastTest.log"
    [[ ! -e $build/softroce/again.log ]] || count_again "$build/softroce"
    if [[ $entry == *Passed ]]; then passed=$((passed - 1)); elif ((now_failed)); then failed=$((failed - 1)); fi
  fi
}

summary() {
  local reason
  if [[ $unguided == yes ]]; then say "the fuzzers were not guided by coverage: clang 16 or newer is not installed (clang-16, libclang-rt-16-dev)"; fi
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

# All fuzzers.
mapfile -t fuzzers < <(fuzz_targets | sed 's/^/fuzz_/')
# The unit tests of --sanitizers=quick: of code that reads untrusted bytes, and of memory shared between threads. They need
# neither programs built by nvcc nor poold, which take most of the time of a whole build.
quick_targets=(
  client_address_space_test client_bulk_parts_test client_capture_test client_checkpoint_exchange_test client_command_queue_test client_devices_test client_handles_test
  client_receiver_test client_replies_test client_compared_copies_test registered_memory_test
  protocol_compression_test protocol_cuda_fatbin_test protocol_hello_codec_test protocol_image_test protocol_lease_test
  server_arbiter_test server_tenants_test
  worker_checkpoint_test worker_commands_test worker_compute_gate_test worker_copies_test worker_direct_copies_test worker_graphs_test
  worker_hostile_test worker_hostile_objects_test worker_memory_moves_test worker_memory_rounds_test worker_memory_quota_test worker_waits_test
)

# build_fuzz_preset CLANG_VERSION TARGET...: builds the targets with preset fuzz.
build_fuzz_preset() {
  local clang=$1
  shift
  quietly build/fuzz/configure.log env "CC=clang-$clang" "CXX=clang++-$clang" cmake --preset fuzz
  quietly build/fuzz/build.log cmake --build --preset fuzz -j "$jobs" --target "$@"
}

# Builds fuzzers and unit tests together with either compiler, because they link mostly the same code.
run_quick_sanitizers() {
  local targets=("${fuzzers[@]}" "${quick_targets[@]}") names clang preset=asan
  names=$(IFS='|' && printf '%s' "${targets[*]}")
  if clang=$(find_clang); then
    preset=fuzz
    say "building preset fuzz, the targets of --sanitizers=quick, with clang $clang and $jobs jobs"
    build_fuzz_preset "$clang" "${targets[@]}"
  else
    unguided=yes
    say "building preset asan, the targets of --sanitizers=quick, with $jobs jobs"
    quietly build/asan/configure.log cmake --preset asan
    quietly build/asan/build.log cmake --build --preset asan -j "$jobs" --target "${targets[@]}"
  fi
  run_tests "$preset" -R "^($names)\$"
}

# Runs all fuzzers, guided by coverage. Exit status 1: there is no clang with libFuzzer.
run_guided_fuzzers() {
  local clang
  clang=$(find_clang) || return 1
  say "building preset fuzz, ${#fuzzers[@]} fuzzers, with clang $clang and $jobs jobs"
  build_fuzz_preset "$clang" "${fuzzers[@]}"
  run_tests fuzz -L fuzz
}

if [[ $sanitizers == no ]]; then for_fuzzers=(); else for_fuzzers=(--fuzzers); fi
[[ $install == no ]] || scripts/install-dependencies.sh "${for_fuzzers[@]}"
if [[ $sanitizers == quick ]]; then
  run_quick_sanitizers
  summary && exit
  exit 1
fi
scripts/build.sh "$preset"
if [[ $soak == yes ]]; then run_tests "$preset"; else run_tests "$preset" -LE '^soak$'; fi

if [[ $sanitizers == yes ]] && ((failed == 0)); then
  # CUDA programs do not depend on the preset, so they are taken from the first build.
  reuse=-DGPUPOOL_CUDA_PROGRAMS_FROM=build/$preset
  without='bench|soak'  # labels
  if run_guided_fuzzers; then without+='|fuzz'; else unguided=yes; fi
  if ((failed == 0)); then
    scripts/build.sh asan "$reuse"
    run_tests asan -LE "$without"
  fi
  if ((failed == 0)); then
    scripts/build.sh tsan "$reuse"
    run_tests tsan -LE 'bench|soak|fuzz'
  fi
fi
summary
