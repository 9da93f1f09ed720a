#!/usr/bin/env bash
# Usage: build_test.sh BUILD MADE
# Makes the packages of a build in MADE, where the other tests of this folder find them, and tests scripts/package.sh: a second run, from
# another folder and with another umask, locale and time zone, makes the same bytes; wrong calls are refused.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1 made=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" && exit 1; }

rm -rf "$made"
"$root/scripts/package.sh" --no-install --build "$build" "$made"
(cd / && umask 077 && TZ=Pacific/Chatham LC_ALL=C "$root/scripts/package.sh" --no-install --build "$build" "$work/second" >"$work/log") || fail "the second run: $(<"$work/log")"
for file in "$made"/*; do
  cmp "$file" "$work/second/$(basename "$file")" || fail "a second run makes another $(basename "$file")"
done
[[ $(ls "$made") == "$(ls "$work/second")" ]] || fail "a second run makes other files"

# refuses TEXT ARGUMENT...: fails unless package.sh fails and says so.
refuses() {
  if "$root/scripts/package.sh" --no-install "${@:2}" "$work/none" >"$work/refusal" 2>&1; then fail "package.sh ${*:2} succeeded"; fi
  grep -qF -- "$1" "$work/refusal" || fail "package.sh ${*:2} did not say '$1': $(<"$work/refusal")"
}
refuses "is not a build folder" --build "$work"
refuses "unknown option" --nothing
refuses "must be deb, rpm or tar" --only zip
refuses "must be a number" --revision 1-2
refuses "needs a value" --build ''
ls -l "$made"
