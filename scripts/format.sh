#!/usr/bin/env bash
# Usage: scripts/format.sh [--check] [--changed[=BASE]] [FILE...]
# Formats the C++ and CUDA sources with clang-format 16 and .clang-format.
# --check           changes nothing; lists the files that differ from the format and exits with 1 if there are any
# --changed[=BASE]  only untracked files and files that differ from the commit BASE (default: HEAD)
# FILE...           only these; files of other languages are ignored
# CLANG_FORMAT names the program. Other versions of clang-format break lines at other places: without version 16, nothing
# is done, and the exit status is 77.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

check=no changed=no base=HEAD chosen=()
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --check) check=yes ;;
    --changed) changed=yes ;;
    --changed=*) changed=yes base=${1#*=} ;;
    -*) die "unknown option '$1'; try --help" ;;
    *) chosen+=("$1") ;;
  esac
  shift
done

cd "$root"
find_format() {
  local name
  for name in ${CLANG_FORMAT:+"$CLANG_FORMAT"} clang-format-16 clang-format; do
    if [[ $("$name" --version 2>/dev/null) == *" version 16."* ]]; then echo "$name" && return; fi
  done
  return 1
}
format=$(find_format) || {
  echo "skipped: clang-format 16 is not installed (package clang-format-16, or pip install clang-format==16.0.6)"
  exit 77
}

sources=('*.h' '*.cc' '*.cu' '*.cuh')
list_files() {
  if ((${#chosen[@]})); then
    printf '%s\0' "${chosen[@]}" | grep -zE '\.(h|cc|cu|cuh)$' || true
  elif [[ $changed == yes ]]; then
    git diff --name-only -z --diff-filter=d "$base" -- "${sources[@]}"
    git ls-files -z --others --exclude-standard -- "${sources[@]}"
  elif git rev-parse --is-inside-work-tree &>/dev/null; then
    git ls-files -z -- "${sources[@]}"
  else  # sources without a git repository
    find client common examples protocol rdma scheduler server tests \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0
  fi
}

mapfile -d '' files < <(list_files)
((${#files[@]})) || exit 0
if [[ $check == no ]]; then
  printf '%s\0' "${files[@]}" | xargs -0 -n 50 -P "$jobs" "$format" -i
  exit
fi
wrong=$(printf '%s\0' "${files[@]}" | xargs -0 -n 50 -P "$jobs" "$format" --dry-run 2>&1 |
  sed -nE 's/^([^:]+):[0-9]+:[0-9]+: warning: code should be clang-formatted.*/\1/p' | sort -u)
[[ -n $wrong ]] || exit 0
printf '%s\n' "$wrong"
die "$(wc -l <<<"$wrong") of ${#files[@]} files differ from .clang-format: run scripts/format.sh"
