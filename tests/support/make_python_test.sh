#!/usr/bin/env bash
# Tests which failures of pip make tests/support/make_python.sh skip and which make it fail. Does not use PyPI.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/broken"
echo "raise SystemExit('does not build')" >"$work/broken/setup.py"

# Makes a virtual environment only once, which takes several seconds, and copies it to the same place from then on.
python=$(command -v python3)
export python work
mkdir "$work/bin"
cat >"$work/bin/python3" <<'END'
#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec "$python" "$@"
if [ -d "$work/first" ]; then exec cp -a "$work/first" "$3"; fi
"$python" -m venv "$3" && cp -a "$3" "$work/first"
END
chmod +x "$work/bin/python3"
export PATH="$work/bin:$PATH"

failed=0
# expect STATUS PATTERN ARGUMENT...: checks the script's exit status and output.
expect() {
  local wanted=$1 pattern=$2 status=0 output
  shift 2
  output=$(sh "$here/make_python.sh" "$work/environment" "$@" 2>&1) || status=$?
  if [[ $status != "$wanted" || ! $output =~ $pattern ]]; then
    printf '%s: ended with %s and printed "%s"; expected %s and "%s"\n' "$*" "$status" "$output" "$wanted" "$pattern"
    failed=1
  fi
}

export PIP_NO_INDEX=1
expect 77 '^skipped: not to be had from PyPI: nothing-of-this-name' nothing-of-this-name
expect 1 '^pip cannot install .*does not build' "--no-build-isolation" "$work/broken"
expect 0 '^$' --requirement /dev/null pip
[[ -f $work/environment/done ]] || { echo "the created environment has no file 'done'"; failed=1; }
unset PIP_NO_INDEX
PIP_SECONDS=60 PIP_INDEX_URL=http://127.0.0.1:9/ expect 77 '^skipped: not to be had from PyPI: numpy' numpy
PIP_SECONDS=0.01 expect 77 '^skipped: PyPI took over 0.01 s: numpy' numpy
exit $failed
