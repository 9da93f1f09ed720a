#!/usr/bin/env bash
# Usage: scripts/make-bundle.sh [--no-install] [--tests] [--no-softgpu] [OUTPUT_FOLDER]
# Makes OUTPUT_FOLDER/gpupool-VERSION-MACHINE.tar.gz (default: in build/bundle) from the release preset: the programs, the
# client library, softgpu, the shared libraries that they need beyond the C and C++ run time, the examples and the
# documents. The bundle runs from any folder on a machine whose glibc and libstdc++ are at least as new as this one's.
# The result is checked: unpacked elsewhere, every program must start and an example must pass through poold.
# --no-install  does not install packages
# --tests       adds the programs of tests/gpu/first_hour.py for a machine with a GPU
# --no-softgpu  leaves out the CPU device and LLVM, which are most of the size
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=scripts/packages/libraries.sh
source "$root/scripts/packages/libraries.sh"

install=yes tests=no softgpu=yes folder=$root/build/bundle
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --no-install) install=no ;;
    --tests) tests=yes ;;
    --no-softgpu) softgpu=no ;;
    -*) die "unknown option '$1'; try --help" ;;
    *) folder=$(realpath -m "$1") ;;
  esac
  shift
done

build=$root/build/release
[[ $install == no ]] || "$root/scripts/install-dependencies.sh" --bundle
command -v patchelf >/dev/null || die "patchelf is missing"
"$root/scripts/build.sh" release --no-tests
if [[ $tests == yes ]]; then
  say "building the tests for machines with a GPU"
  quietly "$build/configure.log" cmake -S "$root" -B "$build" -DGPUPOOL_TESTS=ON
  quietly "$build/build.log" cmake --build "$build" -j "$jobs" --target first_hour
fi

version=$(sed -nE 's/^project\(gpupool VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")
name=gpupool-$version-$(uname -m)
scratch=$(mktemp -d)
poold_pid=''
trap 'stop_poold; rm -rf "$scratch"' EXIT
tree=$scratch/$name

say "collecting $name"
mkdir -p "$tree/examples/tools"
quietly "$scratch/install.log" cmake --install "$build" --prefix "$tree"  # the files of cmake/install.cmake
[[ $softgpu == yes ]] || rm -r "$tree/lib/softgpu"
find "$build/examples" -maxdepth 1 -type f -executable ! -name '*-shared' -exec cp -t "$tree/examples" {} +
find "$build/examples/tools" -maxdepth 1 -type f -executable -exec cp -t "$tree/examples/tools" {} +
cp "$root"/{README.md,CHANGELOG.md,LICENSE} "$tree/"
cp -r "$root/docs" "$tree/"
cp -r "$root/examples/monitoring" "$tree/examples/"
# The packages' units, users and configuration, for a bundle in /opt/gpupool.
mkdir "$tree/system"
for files in "$root"/packaging/packages/*/files; do cp -r "$files/." "$tree/system/"; done
find "$tree/system" -type f -exec sed -i 's,/usr/lib/gpupool/,/opt/gpupool/,g; s,/usr/share/doc/gpupool-common/,/opt/gpupool/,g' {} +
if [[ $tests == yes ]]; then  # in the same folders as in the tree and the build
  mkdir -p "$tree"/tests/{parity,python}
  cp "$build"/bin/gpupool-bench* "$tree/bin/"
  cp "$build"/tests/{probe,driver_app,driver_parity,parity_test} "$tree/tests/"
  cp "$build"/tests/e2e_{scenarios,resume,migration,suspension,interprocess}_test "$tree/tests/"
  cp "$build"/tests/parity/{runtime_parity-static,textures_parity} "$tree/tests/parity/"
  cp -r "$root/tests/gpu" "$tree/tests/"
  cp "$root/tests/python/pool.py" "$tree/tests/python/"
  rm -rf "$tree"/tests/gpu/{__pycache__,hour/__pycache__}
fi
programs=("$tree/bin")  # folders with files that need shared libraries
for more in lib/softgpu tests; do [[ ! -d $tree/$more ]] || programs+=("$tree/$more"); done

mapfile -d '' files < <(find "${programs[@]}" -maxdepth 1 -type f -print0)
needed=$(needed_libraries "${files[@]}") || die "libraries are missing"
while read -r library path; do
  [[ -z $library || -e $tree/lib/$library ]] || cp -L "$path" "$tree/lib/$library"
done <<<"$needed"

strip_and_point() { # FILE RUNPATH
  chmod u+w "$1"
  strip --strip-unneeded "$1"
  point_to "$2" "$1"
}
# shellcheck disable=SC2016  # $ORIGIN is for the dynamic linker
{
  for file in "$tree"/bin/*; do strip_and_point "$file" '$ORIGIN/../lib'; done
  for file in "$tree"/lib/*.so*; do strip_and_point "$file" '$ORIGIN'; done
  if [[ $softgpu == yes ]]; then
    for file in "$tree"/lib/softgpu/*; do [[ -L $file ]] || strip_and_point "$file" '$ORIGIN/..'; done
  fi
  if [[ $tests == yes ]]; then
    for file in "$tree"/tests/*; do [[ -d $file ]] || strip_and_point "$file" '$ORIGIN/../lib'; done
  fi
}
find "$tree/lib/client" -type f -name '*.so*' -exec strip --strip-unneeded {} + -exec patchelf --remove-rpath {} +

mkdir -p "$folder"
tar -C "$scratch" --owner=0 --group=0 --sort=name -czf "$folder/$name.tar.gz" "$name"

say "checking the bundle in another folder"
check=$scratch/unpacked
mkdir "$check"
tar -C "$check" -xzf "$folder/$name.tar.gz"
tree=$check/$name
unset LD_LIBRARY_PATH
programs=("$tree"/{bin,lib}) example_device=softgpu
[[ $tests == no ]] || programs+=("$tree"/tests)
if [[ $softgpu == yes ]]; then programs+=("$tree"/lib/softgpu); else example_device=$build/lib/softgpu/libcuda.so.1; fi
needed=$(find "${programs[@]}" -maxdepth 1 -type f -exec ldd {} + | grep -v '^\s*libcuda\.so')
if grep 'not found' <<<"$needed"; then die "libraries are missing"; fi
if grep -F "$root/" <<<"$needed"; then die "the bundle depends on the build folder"; fi
for program in "$tree"/bin/*; do
  [[ $program != */poold-worker ]] || continue  # can be started by poold only; the example below uses it
  [[ $program != */gpupool-bench* ]] || continue  # started by first_hour.py below
  "$program" --version >"$scratch/version" || die "${program##*/} --version failed"
  note "${program##*/}: $(head -n 1 "$scratch/version")"
done
if [[ -x $tree/examples/vector_add ]]; then
  start_poold "$tree" "$check" --device "$example_device"
  "$tree/bin/pool-run" --server "tcp://127.0.0.1:$poold_port" -- "$tree/examples/vector_add" >"$scratch/example" ||
    die "vector_add failed in the unpacked bundle: $(<"$scratch/example")"
  note "vector_add through poold: $(tail -n 1 "$scratch/example")"
  stop_poold
fi
if [[ $tests == yes ]]; then
  "$tree/tests/gpu/first_hour.py" --out "$scratch/hour" --device "$example_device" --part starts,copies,sharing --quick >"$scratch/hour.log" ||
    die "first_hour.py failed in the unpacked bundle: $(<"$scratch/hour.log")"
  note "first_hour.py: $(grep -c ': ok' "$scratch/hour.log") steps"
fi
say "${green}$folder/$name.tar.gz$plain, $(du -h "$folder/$name.tar.gz" | cut -f1)"
