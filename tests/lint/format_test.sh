#!/usr/bin/env bash
# format_test.sh ROOT: tests scripts/format.sh on a small tree with one file that differs from the format.
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  printf 'FAILED: %s\n' "$*" "format.sh printed:" >&2
  cat "$work/out" >&2
  exit 1
}

mkdir -p "$work/scripts" "$work/client"
cd "$work"
cp "$root"/scripts/{format.sh,common.sh} scripts/
cp "$root/.clang-format" .
printf 'int first();\n' >client/good.cc
printf 'int  second( );\n' >client/bad.h
git init -q .
git -c user.name=test -c user.email=test@localhost commit -q --allow-empty -m empty

# format STATUS TEXT [OPTION...]: runs format.sh and checks its exit status and that it prints TEXT.
format() {
  local expected=$1 text=$2 status=0
  shift 2
  scripts/format.sh "$@" >"$work/out" 2>&1 || status=$?
  if ((status == 77)); then cat "$work/out" && exit 77; fi
  ((status == expected)) || fail "format.sh $* ended with $status instead of $expected"
  [[ -z $text ]] || grep -qF -- "$text" "$work/out" || fail "format.sh $* did not print '$text'"
}
format 1 "1 of 2 files differ" --check --changed
grep -q '^client/bad.h$' "$work/out" || fail "the file that differs is not named"
git add client
format 1 "client/bad.h" --check
format 1 "1 of 1 files differ" --check client/bad.h scripts/format.sh
format 0 "" --check client/good.cc scripts/format.sh
format 0 ""
[[ $(cat client/bad.h) == 'int second();' ]] || fail "client/bad.h was not formatted: $(cat client/bad.h)"
format 0 "" --check
