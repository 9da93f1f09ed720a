#!/usr/bin/env bash
# Usage: scripts/check-new-releases.sh [LIST]
# Asks PyPI (with pip) for the versions of each package in LIST (default: tests/python/releases.txt: CUDA runtimes, NCCL,
# cuDNN) and prints each version that is newer than the package's oldest row and has no row. Intended for a timer.
# Exit status: 0 nothing new, 1 new versions, 2 pip failed.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ ${1:-} != -h && ${1:-} != --help ]] || { usage; exit 0; }

list=${1:-$root/tests/python/releases.txt}
rows=$(sed -nE 's/^([a-z0-9-]+)==([^ #]+).*/\1 \2/p' "$list")
[[ -n $rows ]] || die "no rows in $list"

mapfile -t packages < <(cut -d' ' -f1 <<<"$rows" | sort -u)

new=0
for package in "${packages[@]}"; do
  known=$(awk -v package="$package" '$1 == package { print $2 }' <<<"$rows" | sort -V)
  if ! answer=$(python3 -m pip index versions --disable-pip-version-check "$package" 2>/dev/null); then
    printf 'pip cannot list the versions of %s\n' "$package" >&2
    exit 2
  fi
  available=$(sed -nE 's/^Available versions: //p' <<<"$answer" | tr -d ' ' | tr ',' '\n')
  if [[ -z $available ]]; then
    printf 'pip lists no versions of %s\n' "$package" >&2
    exit 2
  fi
  oldest=$(head -n 1 <<<"$known")
  while read -r version; do
    grep -qxF "$version" <<<"$known" && continue
    [[ $(printf '%s\n%s\n' "$oldest" "$version" | sort -V | head -n 1) == "$oldest" ]] || continue
    printf '%s==%s\n' "$package" "$version"
    new=1
  done <<<"$available"
done
((new == 0)) || note "new versions on PyPI: add a row for each to ${list#"$root"/} and run the tests (python.runtimes, libraries)" >&2
exit $new
