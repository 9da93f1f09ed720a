#!/usr/bin/env bash
# Usage: scripts/lint.sh [--changed[=BASE]] [--includers N] [--at-most N] [--quick] [--tests] [--build FOLDER] [-j N]
# Runs clang-tidy (with the checks of .clang-tidy) on the tree. Every finding is an error; prints their number and exits with 1
# if there are any. Files without findings are not checked again until they change (FOLDER/lint).
# --changed[=BASE]  checks only lines that differ from the commit BASE, in the files that differ and in those that include
#                   a changed header. Default: the merge base with origin/main; on origin/main, or without it, HEAD~1
# --includers N     checks only N of the files that include each changed header
# --at-most N       checks at most N files; the others are counted
# --quick           leaves out clang's analyzer, which takes most of the time
# --tests           also checks tests/, which takes as long as everything else
# --build FOLDER    build folder with the compile_commands.json to use; default: the first of build/ci, build/release and
#                   build/dev that exists, otherwise build/release is configured. Only generated headers are built
# -j N              number of processes; default: the number of processors
# CLANG_TIDY names a clang-tidy (14 or newer) to use in place of the first one on PATH. Without clang-tidy, or with
# --changed and no git history, nothing is checked, and the exit status is 77.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build='' changed=no base='' options=()
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --changed) changed=yes ;;
    --changed=*) changed=yes base=${1#*=} ;;
    --tests | --quick) options+=("$1") ;;
    --includers | --at-most | --build | -j)
      [[ -n ${2:-} ]] || die "$1 needs a value"
      case $1 in
        --build) build=$2 ;;
        -j) jobs=$2 ;;
        *) options+=("$1" "$2") ;;
      esac
      shift
      ;;
    *) die "unknown option '$1'; try --help" ;;
  esac
  shift
done

cd "$root"
skip() { echo "skipped: $*" && exit 77; }

find_tidy() {
  local name
  for name in ${CLANG_TIDY:+"$CLANG_TIDY"} clang-tidy clang-tidy-{14..22}; do
    if command -v "$name" >/dev/null; then echo "$name" && return; fi
  done
  return 1
}
tidy=$(find_tidy) || skip "clang-tidy is not installed (package clang-tidy)"
command -v python3 >/dev/null || skip "python3 is not installed"

# Prints the commit that --changed compares with by default.
find_base() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null) || base=''
  if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then base=$(git rev-parse --verify --quiet HEAD~1) || return; fi
  echo "$base"
}

if [[ $changed == yes ]]; then
  git rev-parse --git-dir >/dev/null 2>&1 || skip "not in a git repository, which --changed needs"
  if [[ -z $base ]]; then base=$(find_base) || skip "there is no earlier commit (a shallow clone?)"; fi
  git rev-parse --verify --quiet "$base^{commit}" >/dev/null || die "--changed: there is no commit '$base'"
  options+=(--changed "$base")
fi

if [[ -z $build ]]; then
  for preset in ci release dev; do
    if [[ -z $build && -e build/$preset/compile_commands.json ]]; then build=build/$preset; fi
  done
fi
if [[ -z $build ]]; then
  build=build/release
  quietly "$build/configure.log" cmake --preset release
fi
[[ -e $build/compile_commands.json ]] || die "$build has no compile_commands.json; configure it with cmake --preset"

# Sources include headers that protoc generates.
if [[ -e $build/build.ninja ]]; then
  mapfile -t generated < <(ninja -C "$build" -t targets all | sed -nE 's/^([^/].*\.pb\.h): CUSTOM_COMMAND$/\1/p')
  for header in "${generated[@]}"; do
    if [[ ! -e $build/$header ]]; then
      quietly "$build/lint.log" ninja -C "$build" "${generated[@]}"
      break
    fi
  done
fi

say "$("$tidy" --version | sed -nE 's/.*version /clang-tidy /p'), $jobs jobs, flags of $build"
python3 scripts/lint.py --build "$build" --tidy "$tidy" --jobs "$jobs" "${options[@]}"
