#!/bin/sh
# Usage: make_python.sh FOLDER PIP_ARGUMENT...
# Makes FOLDER a virtual environment with what pip is told to install, once. Status 77, with the reason, where that cannot be.
set -u
folder=$1
shift
skip() { echo "skipped: $1"; exit 77; }
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9
# What was asked for is part of it: other requirements make it anew.
wanted=$(for word in "$@"; do if [ -f "$word" ]; then cat "$word"; else echo "$word"; fi; done)
[ "$(cat "$folder/done" 2>/dev/null)" = "$wanted" ] && exit 0
rm -rf "$folder"
python3 -m venv "$folder" >/dev/null 2>&1 || skip "python3 has no venv (package python3-venv)"
timeout "${PIP_SECONDS:-60}" "$folder/bin/pip" install --quiet --disable-pip-version-check --retries 1 "$@" >"$folder/pip.log" 2>&1 ||
  skip "not to be had from PyPI: $* ($(tail -n 1 "$folder/pip.log"))"
echo "$wanted" >"$folder/done"
