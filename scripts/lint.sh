#!/usr/bin/env bash
# Usage: scripts/lint.sh [--changed[=BASE]] [--includers N] [--at-most N] [--tests] [--build FOLDER] [-j N]
# clang-tidy (.clang-tidy says with which checks) and shellcheck over the tree. Every finding is an error; ends with their number, and with
# 1 where there are some. What was found clean and has not changed since is not checked again (FOLDER/lint).
# --changed         only lines that differ from the commit BASE: runs on the files that differ, and on those that include a changed header.
#                   Without BASE: the commit where origin/main was left, or, on origin/main itself or without it, HEAD~1
# --includers N     of each changed header, only N of the files that include it
# --at-most N       no more than N files; the others are counted
# --tests           tests/, too, which takes as long as all the rest
# --build FOLDER    whose compile_commands.json names the files and their flags; default: the first of build/ci, build/release and build/dev
#                   that is there, else build/release is configured. Only code that is generated is built
# CLANG_TIDY names another clang-tidy than the first of PATH (14 or newer). Without clang-tidy, or with --changed and no git history, nothing
# is checked, and the exit status is 77.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build='' changed=no base='' options=()
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --changed) changed=yes ;;
    --changed=*) changed=yes base=${1#*=} ;;
    --tests) options+=("$1") ;;
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
tidy=$(find_tidy) || skip "there is no clang-tidy (Debian's package clang-tidy)"
command -v python3 >/dev/null || skip "there is no python3"

# The commit that --changed compares with.
find_base() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null) || base=''
  if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then base=$(git rev-parse --verify --quiet HEAD~1) || return; fi
  echo "$base"
}

if [[ $changed == yes ]]; then
  git rev-parse --git-dir >/dev/null 2>&1 || skip "there is no git repository that could tell what has changed"
  if [[ -z $base ]]; then base=$(find_base) || skip "git knows no commit before this one (a shallow clone?)"; fi
  listed=$(git diff --name-only --diff-filter=d "$base" -- && git ls-files --others --exclude-standard) ||
    die "git cannot tell what has changed since '$base'"
  options+=(--changed "$base")
  mapfile -t scripts < <(grep '\.sh$' <<<"$listed" || true)
else
  mapfile -t scripts < <(find . -name '*.sh' -not -path './build/*' -not -path './.*' | sort)
fi

failed=no
if command -v shellcheck >/dev/null; then
  if ((${#scripts[@]})) && ! shellcheck -x "${scripts[@]}"; then failed=yes; fi
  note "shellcheck: ${#scripts[@]} scripts"
else
  note "there is no shellcheck: ${#scripts[@]} scripts are not checked"
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

# Sources include headers that protoc makes.
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
python3 scripts/lint.py --build "$build" --tidy "$tidy" --jobs "$jobs" "${options[@]}" || failed=yes
[[ $failed == no ]]
