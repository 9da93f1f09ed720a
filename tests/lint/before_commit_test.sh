#!/usr/bin/env bash
# before_commit_test.sh ROOT: tests scripts/before-commit.sh in a small git repository with the scripts of ROOT.
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  printf 'FAILED: %s\n' "$*" "it printed:" >&2
  cat "$work/out" >&2
  exit 1
}
if ! command -v git >/dev/null; then echo "skipped: git is not installed" && exit 77; fi

export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@localhost GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@localhost
mkdir -p "$work"/tree/{scripts/checks,client,server}
cd "$work/tree"
cp "$root"/scripts/{before-commit.sh,format.sh,lint.sh,lint.py,common.sh} scripts/
cp "$root"/scripts/checks/*.py scripts/checks/
cp "$root"/.clang-{format,tidy} .
cat >scripts/checks/layers.toml <<'END'
[layers]
client = []
server = []
[rooms]
"client" = []
"server" = []
END
printf '/build/\n__pycache__/\n' >.gitignore
printf '#pragma once\ninline int run() {\n  return 1;\n}\n' >client/run.h
printf 'int pool() {\n  return 1;\n}\n' >server/pool.cc
printf '# Page\n' >page.md
git init -q .

# check STATUS TEXT [OPTION...]: runs before-commit.sh and checks its exit status and that it prints TEXT.
check() {
  local expected=$1 text=$2 status=0
  shift 2
  scripts/before-commit.sh "$@" >"$work/out" 2>&1 || status=$?
  ((status == expected)) || fail "before-commit.sh $* ended with $status instead of $expected"
  grep -qF -- "$text" "$work/out" || fail "before-commit.sh $* did not print '$text'"
}

check 0 "nothing differs from"
git add -A
check 0 "layers: passed"  # the first commit
git commit -qm first
check 0 "nothing differs from HEAD in git's index"

# A fault for each check.
printf '#include "client/run.h"\nint pool() {\n  return   run();\n}\n' >server/pool.cc
printf '[gone](gone.md)\n' >page.md
printf 'x\n' >'two words.txt'
printf '#!/usr/bin/env bash\ncd /tmp\n' >client/run.sh
printf 'import os\n' >client/run.py
printf 'int many() {\n%s\n}\n' "$(printf '  run();\n%.0s' {1..61})" >client/many.cc
check 0 "nothing differs from HEAD"  # only the index counts
git add -A
git show HEAD:server/pool.cc >server/pool.cc  # not staged
check 1 "failed: names links layers sizes" --no-tidy
for text in "'two words.txt': has characters" "page.md: links to gone.md" "server/pool.cc:1: includes client/run.h" "client/many.cc: many: has 61 lines"; do
  grep -qF -- "$text" "$work/out" || fail "'$text' was not printed"
done
if ! grep -q 'skipped: clang-format' "$work/out"; then grep -qx server/pool.cc "$work/out" || fail "the format of server/pool.cc was not found"; fi
if ! grep -q 'skipped: shellcheck' "$work/out"; then grep -qF 'SC2164' "$work/out" || fail "the fault of client/run.sh was not found"; fi
if ! grep -q 'skipped: pyflakes3' "$work/out"; then grep -qF "'os' imported but unused" "$work/out" || fail "the fault of client/run.py was not found"; fi

# A file that is removed can break links.
git reset -q --hard
git rm -q page.md
printf '[page](page.md)\n' >other.md
git add other.md
check 1 "other.md: links to page.md, which is no tracked file or folder"

# Commits since another one.
git reset -q --hard
printf '#!/usr/bin/env bash\necho one\n' >client/run.sh
git add -A && git commit -qm second
check 0 "shell: passed" --base HEAD~1
check 1 "there is no commit 'gone'" --base gone

# clang-tidy, with the flags of a build folder.
mkdir -p build/release
printf '[{"directory": "%s", "file": "%s", "command": "c++ -I%s -std=c++20 -o pool.o -c %s"}]' "$PWD/build/release" "$PWD/server/pool.cc" "$PWD" "$PWD/server/pool.cc" \
  >build/release/compile_commands.json
printf 'double pool(int value) {\n  return value / 2;\n}\n' >server/pool.cc
git add -A
if command -v clang-tidy >/dev/null; then check 1 "error: result of integer division"; fi

# The hook.
git reset -q --hard
check 0 "installed" --install
check 0 "installed" --install
echo x >'two words.txt' && git add -A
if git commit -qm third >"$work/out" 2>&1; then fail "the hook accepted a bad name"; fi
grep -qF "'two words.txt': has characters" "$work/out" || fail "the hook did not name the file"
git mv 'two words.txt' two_words.txt
git commit -qm third >"$work/out" 2>&1 || fail "the hook rejected a good commit"
echo x >one.txt && echo x >'two words.txt' && git add -A
git commit -qm fourth one.txt >"$work/out" 2>&1 || fail "the hook checked files that are not part of the commit"
git worktree add -q "$work/second" 2>"$work/out"
(cd "$work/second" && echo x >'two words.txt' && git add -A && ! git commit -qm fifth >"$work/out" 2>&1) || fail "the hook accepted a bad name in a worktree"
grep -qF "'two words.txt': has characters" "$work/out" || fail "the hook did not check the worktree"
echo 'exit 0' >.git/hooks/pre-commit
check 1 "is another hook" --install
