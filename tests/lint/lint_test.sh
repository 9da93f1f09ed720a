#!/usr/bin/env bash
# lint_test.sh ROOT: tests scripts/lint.sh on a small tree with errors that it must find and files that it must not check
# again.
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  printf 'FAILED: %s\n' "$*" "lint.sh printed:" >&2
  cat "$work/out" >&2
  exit 1
}

mkdir -p "$work"/tree/{scripts,client,build/release} "$work/bin"
cd "$work/tree"
cp "$root"/scripts/{lint.sh,lint.py,common.sh} scripts/
cp "$root/.clang-tidy" .
cat >client/header.h <<'END'
#pragma once
inline int twice(int value) { return 2 * value; }
END
cat >client/first.cc <<'END'
#include "client/header.h"
int first() { return twice(1); }
END
cat >client/second.cc <<'END'
int second(const int* value) { return value ? *value : 0; }
END
cat >client/third.cc <<'END'
int third() { return 3; }
END
# A CMake unity file with the first two sources, and a single source.
mkdir -p build/release/Unity
printf '#include "%s"\n' "$PWD/client/first.cc" "$PWD/client/second.cc" >build/release/Unity/unity_0_cxx.cxx
# The flags are those of a build with GCC: an option and a precompiled header that clang does not know.
echo 'not for clang' >build/release/cmake_pch.hxx.gch
entry() {
  printf '{"directory": "%s", "file": "%s", "command": "c++ -I%s %s -include %s -o %s -c %s"}' "$PWD/build/release" "$1" "$PWD" \
    '-std=c++20 -Werror --param=ggc-min-heapsize=524288' "$PWD/build/release/cmake_pch.hxx" "$2" "$1"
}
printf '[%s, %s]' "$(entry "$PWD/build/release/Unity/unity_0_cxx.cxx" unity.o)" "$(entry "$PWD/client/third.cc" third.o)" \
  >build/release/compile_commands.json

# lint STATUS TEXT [OPTION...]: runs lint.sh and checks its exit status and that it prints TEXT.
lint() {
  local expected=$1 text=$2 status=0
  shift 2
  scripts/lint.sh -j 1 "$@" >"$work/out" 2>&1 || status=$?
  if ((expected != 77)) && grep -E 'skipped: (clang-tidy|python3) is not installed' "$work/out"; then exit 77; fi
  ((status == expected)) || fail "lint.sh $* ended with $status, expected $expected"
  grep -qF -- "$text" "$work/out" || fail "lint.sh $* did not print '$text'"
}

lint 0 'clang-tidy: 0 findings in 3 files; 0 known to be clean'
lint 0 'clang-tidy: 0 findings in 0 files; 3 known to be clean'

# An error that only the analyzer finds, in a member of a unity file. It would be missed in CMake's own unity file.
cat >client/second.cc <<'END'
int second(const int* value) { return value ? 0 : *value; }
END
lint 1 'client/second.cc:1:51: error: Dereference of null pointer'
grep -qF 'clang-tidy: 1 findings in 2 files; 1 known to be clean' "$work/out" || fail "one finding in the unit that changed"
lint 1 'clang-tidy: 1 findings in 2 files'  # a unit with a finding is checked again
lint 0 'clang-tidy: 0 findings in 3 files; 0 known to be clean' --quick
lint 1 'clang-tidy: 1 findings in 2 files'  # what is clean without the analyzer is not known to be clean with it

# A source that does not compile is a finding.
echo 'int second(' >client/second.cc
lint 1 '[clang-diagnostic-error'

# Changes since a commit, and the files that include changed headers.
lint 77 'skipped: not in a git repository' --changed
command -v git >/dev/null || exit 0
commit() { git add -A && git -c user.name=x -c user.email=x@example.org -c commit.gpgsign=false commit -qm x; }
echo build >.gitignore
echo 'int second(const int* value) { return value ? *value : 0; }' >client/second.cc
git init -q . && commit
lint 77 'skipped: there is no earlier commit' --changed
echo 'inline double half(int value) { return value / 2; }' >>client/header.h
commit
lint 1 'client/header.h:3:40: error: result of integer division' --changed
grep -qF 'findings in 1 files' "$work/out" || fail "only first.cc includes the header"
echo >>client/third.cc
echo >>client/second.cc
lint 0 'findings in 1 files; 0 known to be clean, 1 left out' --changed=HEAD --at-most 1
# A finding in an unchanged line does not count; a finding in a new file does.
echo >>client/header.h
lint 0 '0 findings in 3 files' --changed=HEAD
lint 0 '0 findings in 0 files; 3 known to be clean' --changed=HEAD
sed -i 's/third.cc/other.cc/g' build/release/compile_commands.json
cp client/header.h client/other.cc
lint 1 'client/other.cc:3:40: error: result of integer division' --changed=HEAD

# Without clang-tidy.
for tool in bash env dirname nproc sed git python3 find sort grep; do ln -s "$(command -v "$tool")" "$work/bin/$tool"; done
PATH=$work/bin lint 77 'skipped: clang-tidy is not installed'
