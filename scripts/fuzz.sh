#!/usr/bin/env bash
# Usage: scripts/fuzz.sh [--seconds N | --hours N] [--executions N] [--jobs N] [--coverage] [--uncovered FILE] [--keep] [TARGET...]
# Builds the fuzzers of tests/fuzz with clang (16 or newer), AddressSanitizer and UndefinedBehaviorSanitizer, and runs all
# of them, or the named ones (`fatbin`, `hello`, ...), guided by coverage.
#
#   --seconds N   run each target for N seconds (30)
#   --hours N     run all targets in N hours, with equal time for each
#   --executions N  end a target's run after N executions, if that is sooner
#   --jobs N      run N targets at once (the number of processors)
#   --coverage    do not fuzz, but print the line coverage of the inputs found so far, for each tested file
#   --uncovered FILE  do not fuzz, but print the lines of FILE, a path from the top, that these inputs do not reach
#   --keep        afterwards write the minimized corpus to tests/fuzz/corpora, one archive for each target
#
# Inputs found are kept in build/fuzz/corpus/TARGET for the next run. An input that makes a target fail is written to
# build/fuzz/failures with the target's output; `build/fuzz/tests/fuzz_TARGET FILE` reproduces it. Exit status 1: a target
# failed.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

seconds=30 hours='' executions=0 jobs=$(nproc) coverage=no uncovered='' keep=no targets=()
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --seconds | --hours | --jobs | --executions)
      [[ ${2:-} =~ ^[0-9]+$ && $2 -gt 0 ]] || die "$1 needs a number above 0"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    --coverage) coverage=yes ;;
    --uncovered)
      [[ -f ${2:-} ]] || die "--uncovered needs a source file, as a path from the top"
      coverage=yes uncovered=$2
      shift
      ;;
    --keep) keep=yes ;;
    -*) die "unknown option '$1'; try --help" ;;
    *) targets+=("$1") ;;
  esac
  shift
done

version=$(find_clang) || die "needs clang 16 or newer: apt-get install clang-16 libclang-rt-16-dev llvm-16"
mapfile -t known < <(fuzz_targets)
for target in "${targets[@]}"; do
  [[ " ${known[*]} " == *" $target "* ]] || die "unknown target '$target'; the targets are: ${known[*]}"
done
((${#targets[@]})) || targets=("${known[@]}")
[[ -z $hours ]] || seconds=$((hours * 3600 * jobs / ${#targets[@]}))

# build FOLDER OPTION...: builds the chosen targets in FOLDER.
build() {
  local folder=$1
  shift
  mkdir -p "$folder"
  say "building ${#targets[@]} fuzzers in $folder with clang $version"
  CC=clang-$version CXX=clang++-$version cmake --preset fuzz -B "$folder" "$@" >"$folder/configure.log" 2>&1 ||
    { tail -n 20 "$folder/configure.log" >&2 && die "cmake failed: $folder/configure.log"; }
  cmake --build "$folder" -j "$(nproc)" --target "${targets[@]/#/fuzz_}" >"$folder/build.log" 2>&1 ||
    { grep -A 8 -E 'error|FAILED' "$folder/build.log" | head -n 40 >&2 && die "the build failed: $folder/build.log"; }
}

# unpack TARGET: extracts the repository's inputs of a target to build/fuzz/kept/TARGET.
unpack() {
  mkdir -p "build/fuzz/corpus/$1" "build/fuzz/kept/$1"
  if [[ -f tests/fuzz/corpora/$1.tar.zst ]]; then tar -C "build/fuzz/kept/$1" --zstd -xf "tests/fuzz/corpora/$1.tar.zst"; fi
}

# shellcheck disable=SC2317  # called by xargs
run_target() {
  local target=$1 status=0 log=build/fuzz/failures/$1.log executed covered
  unpack "$target"
  # 0 executions: no limit
  "build/fuzz/tests/fuzz_$target" -runs="$((executions ? executions : -1))" -max_total_time="$seconds" -max_len=8192 \
    -timeout=60 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/failures/$target-" "build/fuzz/corpus/$target" "build/fuzz/kept/$target" "tests/fuzz/seeds/$target" >"$log" 2>&1 || status=$?
  executed=$(grep -a '^stat::number_of_executed_units' "$log" | grep -oE '[0-9]+$' || true)
  covered=$(grep -aoE 'cov: [0-9]+' "$log" | tail -n 1 | grep -oE '[0-9]+' || true)
  if ((status)); then
    printf '%-16s FAILED with %s: %s\n' "$target" "$status" "$log"
    return 1
  fi
  printf '%-16s %12s executions, %6s edges covered, %5s inputs\n' "$target" "${executed:-?}" "${covered:-?}" "$(find "build/fuzz/corpus/$target" -type f | wc -l)"
  rm -f "$log"
}

print_coverage() {
  local build=build/fuzz-coverage target objects=()
  build "$build" -DGPUPOOL_SANITIZE= "-DCMAKE_CXX_FLAGS=-fprofile-instr-generate -fcoverage-mapping"
  rm -f "$build"/*.profraw
  for target in "${targets[@]}"; do
    unpack "$target"
    LLVM_PROFILE_FILE="$root/$build/$target.profraw" "$build/tests/fuzz_$target" -runs=0 "build/fuzz/corpus/$target" "build/fuzz/kept/$target" "tests/fuzz/seeds/$target" >/dev/null 2>&1 ||
      note "$target fails on its corpus: its coverage is incomplete"
    objects+=("$build/tests/fuzz_$target")
  done
  "llvm-profdata-$version" merge -sparse "$build"/*.profraw -o "$build/all.profdata"
  if [[ $uncovered ]]; then
    "llvm-cov-$version" show -instr-profile="$build/all.profdata" "${objects[0]}" "${objects[@]/#/-object=}" "$root/$uncovered" 2>/dev/null | grep -E '^ *[0-9]+\| +0\|' || note "every line of $uncovered is reached"
    return
  fi
  "llvm-cov-$version" report -instr-profile="$build/all.profdata" "${objects[0]}" "${objects[@]/#/-object=}" 2>/dev/null |
    awk 'NR == 1 { print "file", "lines", "missed", "covered" } !/^-/ && $8 > $9 { print $1, $8, $9, $10 }' | column -t
}

keep_corpora() {
  local target folder
  mkdir -p tests/fuzz/corpora
  for target in "${targets[@]}"; do
    folder=build/fuzz/merged/$target
    rm -rf "$folder" && mkdir -p "$folder"
    "build/fuzz/tests/fuzz_$target" -merge=1 "$folder" "build/fuzz/corpus/$target" "build/fuzz/kept/$target" >/dev/null 2>&1 || die "merging the corpus of $target failed"
    tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --zstd -cf "tests/fuzz/corpora/$target.tar.zst" .
    note "$target: $(find "$folder" -type f | wc -l) inputs, $(stat -c %s "tests/fuzz/corpora/$target.tar.zst") bytes"
  done
}

if [[ $coverage == yes ]]; then
  print_coverage
  exit
fi
build build/fuzz
mkdir -p build/fuzz/failures
say "running ${#targets[@]} fuzzers for $seconds s each, $jobs at once"
export seconds executions
export -f run_target unpack
failed=0
# shellcheck disable=SC2016  # expanded by the shell that xargs starts
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'run_target "$1"' run {} || failed=1
[[ $keep == no ]] || keep_corpora
exit $failed
