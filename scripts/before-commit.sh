#!/usr/bin/env bash
# Usage: scripts/before-commit.sh [--base COMMIT] [--no-tidy] | --install
# Checks the files in git's index as the next commit would contain them: names, links, layers and docs/security.md of the whole
# tree; format, sizes, shell scripts and Python of what differs from HEAD. Then runs clang-tidy, without its analyzer, on the
# differing lines of at most 4 sources in the working tree, if a build folder is configured. Exits with 1 if a check fails; a
# check whose tool is not installed is skipped. CI runs all of these checks on the whole tree.
# --base COMMIT  checks what differs from COMMIT, for example from origin/main
# --no-tidy      without clang-tidy
# --install      makes git run this script before each commit (hook pre-commit; git commit --no-verify skips it)
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

base=HEAD tidy=yes install=no
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --base)
      [[ -n ${2:-} ]] || die "--base needs a commit"
      base=$2 && shift
      ;;
    --no-tidy) tidy=no ;;
    --install) install=yes ;;
    *) die "unknown option '$1'; try --help" ;;
  esac
  shift
done
cd "$root"

install_hook() {
  local hook
  hook=$(git rev-parse --git-path hooks)/pre-commit
  if [[ -e $hook ]] && ! grep -q scripts/before-commit.sh "$hook"; then
    die "$hook exists and is another hook: call scripts/before-commit.sh in it"
  fi
  mkdir -p "$(dirname "$hook")"
  # Commits of a branch without the script are not checked.
  cat >"$hook" <<'END'
#!/bin/sh
# Written by scripts/before-commit.sh --install.
script=$(git rev-parse --show-toplevel)/scripts/before-commit.sh
[ ! -x "$script" ] || exec "$script"
END
  chmod +x "$hook"
  note "installed $hook"
}
if [[ $install == yes ]]; then install_hook && exit; fi

if [[ $base == HEAD ]] && ! git rev-parse --verify --quiet HEAD >/dev/null; then
  base=$(git hash-object -t tree /dev/null) tidy=no  # the first commit
fi
git rev-parse --verify --quiet "$base^{tree}" >/dev/null || die "--base: there is no commit '$base'"
mapfile -d '' touched < <(git diff --cached --name-only --no-renames -z "$base" --)
if ((!${#touched[@]})); then note "nothing differs from $base in git's index: git add first" && exit; fi
mapfile -d '' changed < <(git diff --cached --name-only --no-renames --diff-filter=d -z "$base" --)

snapshot=$(mktemp -d)
trap 'rm -rf "$snapshot"' EXIT
git checkout-index --all --prefix="$snapshot/"
mapfile -t git_variables < <(git rev-parse --local-env-vars)  # git sets some of them for hooks
unset "${git_variables[@]}"

failed=()
# run NAME FOLDER COMMAND...: runs a check in a folder; prints its output if it fails.
run() {
  local name=$1 folder=$2 status=0 output started=$SECONDS
  shift 2
  output=$(cd "$folder" && "$@" 2>&1) || status=$?
  case $status in
    0) note "$name: passed ($((SECONDS - started)) s)" ;;
    77) note "$name: ${output##*$'\n'}" ;;
    *)
      say "${red}$name failed${plain}"
      printf '%s\n' "$output"
      failed+=("$name")
      ;;
  esac
}

for check in names links layers security; do run "$check" "$snapshot" python3 "scripts/checks/$check.py"; done
run sizes "$snapshot" python3 scripts/checks/sizes.py "${touched[@]}"
if ((${#changed[@]})); then
  run format "$snapshot" scripts/format.sh --check "${changed[@]}"
  for language in shell python; do run "$language" "$snapshot" python3 scripts/checks/scripts.py "$language" "${changed[@]}"; done
fi
if [[ $tidy == yes ]] && printf '%s\n' "${changed[@]}" | grep -qE '\.(cc|h)$'; then
  if compgen -G 'build/*/compile_commands.json' >/dev/null; then
    run clang-tidy "$root" scripts/lint.sh --changed="$base" --quick --includers 1 --at-most 4
  else
    note "clang-tidy: skipped: no build folder is configured (cmake --preset dev)"
  fi
fi

((!${#failed[@]})) || die "failed: ${failed[*]} (git commit --no-verify commits regardless)"
