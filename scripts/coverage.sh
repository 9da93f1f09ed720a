#!/usr/bin/env bash
# Usage: scripts/coverage.sh [--targets "TARGET..."] [--keep] [--files] [CTEST_OPTION...]
# Builds preset coverage with clang (16 or newer), runs its tests but for those labelled soak, and prints how many lines of
# client/, common/, protocol/, rdma/, scheduler/ and server/ they executed, by folder; server/softgpu is left out. The
# counters include all processes that the tests start: poold, workers, schedulers, and the client library in CUDA programs.
# Only the processes of the virtual machine of tests/softroce are not counted.
#
#   --targets "T..."   build only these targets (everything)
#   --keep             add to the counters of the last run, instead of starting from 0
#   --files            also print the lines of each file
#   CTEST_OPTION       for example -R NAME to run some of the tests; --keep -N runs none and prints the table again
#
# A test that measures time or inspects built files may fail in this build; the names of failed tests are printed, and their
# lines count. build/coverage/lines.info has the executed lines in lcov's format.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

targets=(all) keep=no files=no options=()
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --targets)
      [[ -n ${2:-} ]] || die "--targets needs names"
      read -ra targets <<<"$2" && shift
      ;;
    --keep) keep=yes ;;
    --files) files=yes ;;
    *) options+=("$1") ;;
  esac
  shift
done

build=build/coverage
version=$(find_clang) || die "needs clang 16 or newer: apt-get install clang-16 libclang-rt-16-dev llvm-16"
export CC=clang-$version CXX=clang++-$version

say "building preset coverage with clang $version and $jobs jobs"
quietly $build/configure.log cmake --preset coverage
quietly $build/build.log cmake --build --preset coverage -j "$jobs" --target "${targets[@]}"

# Programs that are built during the build may have counted already.
[[ $keep == yes ]] || rm -rf $build/profiles
say "running the tests of $build"
{ ctest --test-dir $build -j "$test_jobs" -LE "^soak\$" "${options[@]}" 2>&1 || true; } | tee $build/ctest.log |
  grep --line-buffered -E '\*\*\*|tests passed|No tests|The following tests|Errors while' || true

# Prints the built programs and libraries that have counters.
instrumented() {
  find $build/bin $build/lib $build/tests -type f \( -perm -u+x -o -name '*.so*' \) -print0 |
    while IFS= read -rd '' file; do
      if readelf -SW "$file" 2>/dev/null | grep -q __llvm_covmap; then echo "$file"; fi
    done
}

mapfile -t objects < <(instrumented)
((${#objects[@]})) || die "no program in $build has counters: the build is not one of preset coverage"
mapfile -t profiles < <(find $build/profiles -name '*.profraw')
((${#profiles[@]})) || die "the tests have counted nothing; see $build/ctest.log"
say "counting lines in ${#objects[@]} programs and libraries"
quietly $build/merge.log "llvm-profdata-$version" merge -sparse --failure-mode=all "${profiles[@]}" -o $build/all.profdata
"llvm-cov-$version" export -format=lcov -skip-functions -skip-branches -skip-expansions -instr-profile=$build/all.profdata \
  -ignore-filename-regex="^$root/(tests|examples|build)/|/softgpu/|^/usr/" "${objects[0]}" "${objects[@]/#/-object=}" \
  >$build/lines.info 2>$build/export.log || die "llvm-cov failed: $build/export.log"

# table KIND: prints the lines of each folder, or each file, and their sum.
table() {
  awk -v root="$root/" -v kind="$1" -v sort='LC_ALL=C sort' '
    /^SF:/ {
      name = substr($0, 4)
      wanted = index(name, root) == 1
      name = substr(name, length(root) + 1)
      wanted = wanted && name ~ /^(client|common|protocol|rdma|scheduler|server)\//
      if (kind == "folders") sub(/\/[^\/]*$/, "", name)
    }
    /^DA:/ && wanted {
      split(substr($0, 4), line, ",")
      lines[name]++
      all++
      if (line[2] == 0) next
      executed[name]++
      all_executed++
    }
    END {
      if (!all) exit 1
      row = "%-44s %8d %9d %7.1f %%\n"
      printf "%-44s %8s %9s %9s\n", kind, "lines", "executed", "share"
      fflush()
      for (name in lines) printf row, name, lines[name], executed[name], 100 * executed[name] / lines[name] | sort
      close(sort)
      printf row, "total", all, all_executed, 100 * all_executed / all
    }' $build/lines.info || die "no line of the product was counted: $build/export.log"
}
[[ $files == no ]] || table files
table folders
