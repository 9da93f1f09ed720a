#!/usr/bin/env bash
# Usage: scripts/test.sh [--preset NAME] [--soak] [--sanitizers[=quick]] [--retry] [--no-install]
# Installs missing packages, builds a preset (default: release) and runs all of its tests. --soak also runs the same tests
# for much longer where that finds more (label soak: cut connections, moved sessions, many clients). --sanitizers then also builds
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
# shellcheck source=scripts/test/results.sh
source "$root/scripts/test/results.sh"

preset=release sanitizers=no install=yes soak=no
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
unguided=no  # the fuzzers ran without coverage

# All fuzzers.
mapfile -t fuzzers < <(fuzz_targets | sed 's/^/fuzz_/')
# The unit tests of --sanitizers=quick: of code that reads untrusted bytes, and of memory shared between threads. They need
# neither programs built by nvcc nor poold, which take most of the time of a whole build.
quick_targets=(
  client_address_space_test client_bulk_parts_test client_capture_test client_checkpoint_exchange_test client_command_queue_test client_devices_test client_handles_test
  client_receiver_test client_receiver_reading_test client_replies_test client_compared_copies_test registered_memory_test
  protocol_compression_test protocol_cuda_fatbin_test protocol_hello_codec_test protocol_image_test protocol_lease_test
  server_arbiter_test server_tenants_test
  worker_checkpoint_test worker_commands_test worker_compute_gate_test worker_copies_test worker_direct_copies_test worker_graphs_test
  worker_hostile_test worker_hostile_objects_test worker_memory_moves_test worker_memory_rounds_test worker_memory_quota_test worker_waits_test
)

# build_with_clang CLANG_VERSION PRESET TARGET...: builds the targets with a preset of fuzzers.
build_with_clang() {
  local clang=$1 preset=$2
  shift 2
  quietly "build/$preset/configure.log" env "CC=clang-$clang" "CXX=clang++-$clang" cmake --preset "$preset"
  quietly "build/$preset/build.log" cmake --build --preset "$preset" -j "$jobs" --target "$@"
}

# Builds fuzzers and unit tests together with either compiler, because they link mostly the same code.
run_quick_sanitizers() {
  local targets=("${fuzzers[@]}" "${quick_targets[@]}") names clang preset=asan
  names=$(IFS='|' && printf '%s' "${targets[*]}")
  if clang=$(find_clang); then
    preset=fuzz-quick
    say "building preset fuzz-quick, the targets of --sanitizers=quick, with clang $clang and $jobs jobs"
    build_with_clang "$clang" fuzz-quick "${targets[@]}"
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
  build_with_clang "$clang" fuzz "${fuzzers[@]}"
  run_tests fuzz -L fuzz
}

finish() {
  if [[ $unguided == yes ]]; then say "the fuzzers were not guided by coverage: clang 16 or newer is not installed (clang-16, libclang-rt-16-dev)"; fi
  summary
}

more=()
[[ $sanitizers == no ]] || more+=(--fuzzers)
[[ $soak == no ]] || more+=(--soak)
[[ $install == no ]] || scripts/install-dependencies.sh "${more[@]}"
if [[ $sanitizers == quick ]]; then
  run_quick_sanitizers
  finish && exit
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
finish
