#!/bin/sh
# Usage: make_python.sh FOLDER PIP_ARGUMENT...
# Creates the virtual environment FOLDER with the given pip packages, once. Exits with 77 and a reason if PyPI is unreachable,
# has no package for this Python, or takes longer than PIP_SECONDS (60), or if FOLDER's disk has less than NEEDS_GIB free.
# Exits with 1 and pip's log if pip fails otherwise.
set -u
folder=$1
shift
skip() { echo "skipped: $1"; exit 77; }
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9
# The requirements are recorded; the environment is recreated if they change.
wanted=$(for word in "$@"; do if [ -f "$word" ]; then cat "$word"; else echo "$word"; fi; done)
[ "$(cat "$folder/done" 2>/dev/null)" = "$wanted" ] && exit 0
rm -rf "$folder"
free=$(($(df -Pk "$(dirname "$folder")" | awk 'NR == 2 { print $4 }') / 1048576))
[ "$free" -ge "${NEEDS_GIB:-0}" ] || skip "needs $NEEDS_GIB GiB of disk; $free GiB are free"
python3 -m venv "$folder" >/dev/null 2>&1 || skip "python3 has no venv (package python3-venv)"
# Python compiles the modules that programs import; pip would compile the thousands of all packages.
timeout "${PIP_SECONDS:-60}" "$folder/bin/pip" install --quiet --disable-pip-version-check --no-compile --retries 1 "$@" >"$folder/pip.log" 2>&1
status=$?
if [ $status -eq 124 ]; then skip "PyPI took over ${PIP_SECONDS:-60} s: $*"; fi
if [ $status -ne 0 ]; then
  grep -qE 'Connection|Network|timed out|No matching distribution|No space left' "$folder/pip.log" &&
    skip "not to be had from PyPI: $* ($(tail -n 1 "$folder/pip.log"))"
  echo "pip cannot install $*:"
  cat "$folder/pip.log"
  exit 1
fi
echo "$wanted" >"$folder/done"
