#!/usr/bin/env bash
# Usage: scripts/make-bundle.sh [--no-install] [OUTPUT_FOLDER]
# Makes OUTPUT_FOLDER/gpupool-VERSION-MACHINE.tar.gz (build/bundle if no folder is named) from the release preset: the
# programs, the client library, softgpu, the shared libraries they need beyond the C and C++ run time, the examples
# and the documents. It runs from any folder on a machine whose glibc and libstdc++ are at least as new as this one's.
# The result is checked: unpacked elsewhere, every program must start and an example must pass through poold.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

install=yes folder=$root/build/bundle
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --no-install) install=no ;;
    -*) die "unknown option '$1'; try --help" ;;
    *) folder=$(realpath -m "$1") ;;
  esac
  shift
done

build=$root/build/release
[[ $install == no ]] || "$root/scripts/install-dependencies.sh" --bundle
command -v patchelf >/dev/null || die "patchelf is missing"
"$root/scripts/build.sh" release --no-tests

version=$(sed -nE 's/^project\(gpupool VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")
name=gpupool-$version-$(uname -m)
scratch=$(mktemp -d)
poold_pid=''
trap 'stop_poold; rm -rf "$scratch"' EXIT
tree=$scratch/$name

say "collecting $name"
mkdir -p "$tree"/{bin,lib/client,lib/softgpu,examples/tools}
cp -a "$build"/lib/client/*.so* "$tree/lib/client/"
(cd "$root/client" && cp --parents python/jax_plugins/gpupool/*.py "$tree/lib/client/")
cp -a "$build"/lib/softgpu/*.so* "$tree/lib/softgpu/"
find "$build/bin" -maxdepth 1 -type f -executable -exec cp -t "$tree/bin" {} +
find "$build/examples" -maxdepth 1 -type f -executable ! -name '*-shared' -exec cp -t "$tree/examples" {} +
find "$build/examples/tools" -maxdepth 1 -type f -executable -exec cp -t "$tree/examples/tools" {} +
cp "$root"/{README.md,CHANGELOG.md,LICENSE} "$tree/"
cp -r "$root/docs" "$tree/"
cp -r "$root"/examples/{monitoring,systemd} "$tree/examples/"

# Every machine has these, and a second copy of them in one process does harm.
base='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+)\.so'
while read -r library path; do
  [[ $library =~ $base || -e $tree/lib/$library ]] || cp -L "$path" "$tree/lib/$library"
done < <(find "$tree/bin" "$tree/lib/softgpu" -type f -exec ldd {} + |
  awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u)

strip_and_point() { # FILE RUNPATH
  chmod u+w "$1"
  strip --strip-unneeded "$1"
  patchelf --set-rpath "$2" "$1"
}
# shellcheck disable=SC2016  # $ORIGIN is for the dynamic linker
{
  for file in "$tree"/bin/*; do strip_and_point "$file" '$ORIGIN/../lib'; done
  for file in "$tree"/lib/*.so*; do strip_and_point "$file" '$ORIGIN'; done
  find "$tree/lib/softgpu" -type f -print0 | while IFS= read -r -d '' file; do strip_and_point "$file" '$ORIGIN/..'; done
}
find "$tree/lib/client" -type f -name '*.so*' -exec strip --strip-unneeded {} + -exec patchelf --remove-rpath {} +

mkdir -p "$folder"
tar -C "$scratch" --owner=0 --group=0 --sort=name -czf "$folder/$name.tar.gz" "$name"

say "checking it in another folder"
check=$scratch/unpacked
mkdir "$check"
tar -C "$check" -xzf "$folder/$name.tar.gz"
tree=$check/$name
unset LD_LIBRARY_PATH
if find "$tree/bin" "$tree/lib" -type f -exec ldd {} + | grep 'not found'; then die "libraries are missing"; fi
if find "$tree/bin" "$tree/lib" -type f -exec ldd {} + | grep -F "$root/"; then die "it needs the build folder"; fi
for program in "$tree"/bin/*; do
  [[ $program != */poold-worker ]] || continue  # only poold can start it; the example below needs it
  "$program" --version >"$scratch/version" || die "${program##*/} --version failed"
  note "${program##*/}: $(head -n 1 "$scratch/version")"
done
if [[ -x $tree/examples/vector_add ]]; then
  start_poold "$tree" "$check" --device softgpu
  "$tree/bin/pool-run" --server "tcp://127.0.0.1:$poold_port" -- "$tree/examples/vector_add" >"$scratch/example" ||
    die "vector_add failed in the unpacked bundle: $(<"$scratch/example")"
  note "vector_add through poold: $(tail -n 1 "$scratch/example")"
  stop_poold
fi
say "${green}$folder/$name.tar.gz$plain, $(du -h "$folder/$name.tar.gz" | cut -f1)"
