#!/usr/bin/env bash
# Usage: index_test.sh MADE TOOLS
# Tests scripts/make-index.sh: apt gets a package and pip installs a wheel from what it makes; a second call adds to it; wrong calls are
# refused. TOOLS: a virtual environment with pip. install_time.sh installs from such an index in bare systems.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
made=$1 tools=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" && exit 1; }
index=$work/index

# A wheel with nothing in it.
mkdir "$work/wheels" "$work/empty"
python3 - "$work/wheels/gpupool-0.0.1-py3-none-any.whl" <<'PYTHON'
import sys
import zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr("gpupool-0.0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: gpupool\nVersion: 0.0.1\n")
    wheel.writestr("gpupool-0.0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("gpupool-0.0.1.dist-info/RECORD", "")
PYTHON

if "$root/scripts/make-index.sh" "$index" "$work/empty" >"$work/said" 2>&1; then fail "make-index.sh made an index of nothing"; fi
grep -q 'no packages in' "$work/said" || fail "make-index.sh did not say what is missing: $(<"$work/said")"
[[ ! -e $index ]] || fail "a refused call leaves $(find "$index")"
"$root/scripts/make-index.sh" "$index" "$made" >"$work/said"
grep -q "file:$index ./" "$work/said" || fail "make-index.sh does not say how apt installs: $(<"$work/said")"
[[ ! -e $index/simple ]] || fail "there is an index of wheels without a wheel"
"$root/scripts/make-index.sh" "$index" "$work/wheels" >"$work/said"
grep -q -- "--index-url file://$index/simple" "$work/said" || fail "make-index.sh does not say how pip installs: $(<"$work/said")"
[[ -z $(find "$index" -name '.*') ]] || fail "files are left: $(find "$index" -name '.*')"

# apt with a state of its own: it checks the package's size and sum in the index.
mkdir -p "$work"/apt/{lists/partial,archives/partial,got}
touch "$work/apt/status"
echo "deb [trusted=yes] file:$index ./" >"$work/apt/sources.list"
apt=(-o Dir::State="$work/apt" -o Dir::State::status="$work/apt/status" -o Dir::Cache="$work/apt" -o APT::Sandbox::User=root
  -o Dir::Etc::SourceList="$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null)
apt-get "${apt[@]}" -qq update >"$work/said" 2>&1 || fail "apt-get update: $(<"$work/said")"
(cd "$work/apt/got" && apt-get "${apt[@]}" -qq download gpupool-client >"$work/said" 2>&1) || fail "apt-get download: $(<"$work/said")"
cmp "$made"/gpupool-client_*.deb "$work"/apt/got/*.deb || fail "apt has got another package"

if [[ -x $tools/bin/pip ]]; then
  "$tools/bin/pip" --isolated install --quiet --disable-pip-version-check --index-url "file://$index/simple" --target "$work/installed" gpupool || fail "pip install"
  [[ -d $work/installed/gpupool-0.0.1.dist-info ]] || fail "pip has not installed the wheel"
else
  echo "SKIPPED: packaging.index.pip: wheel.tools has made no environment with pip"
fi
echo "apt and pip install from the index"
