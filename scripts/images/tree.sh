# Sourced by scripts that need gpupool's programs with all shared libraries that they load beyond the C and C++ run time, as
# in a bundle of scripts/make-bundle.sh. Needs patchelf.
# shellcheck shell=bash

# make_tree BUILD TREE FILE...: copies files of a build folder, named by their paths in it, to the same paths in TREE, and the
# libraries that they need to TREE/lib, where they find them.
make_tree() {
  local build=$1 tree=$2 file library path
  # Every image with a CUDA program has these libraries, and a second copy in one process would cause failures.
  local base='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|libcuda)\.so'
  shift 2
  mkdir -p "$tree/lib"
  (cd "$build" && cp -a --parents "$@" "$tree/")
  while read -r library path; do
    [[ $library =~ $base || -e $tree/lib/$library ]] || cp -L "$path" "$tree/lib/$library"
  done < <(cd "$build" && ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u)
  # shellcheck disable=SC2016  # $ORIGIN is for the dynamic linker
  for file in "$@" lib; do
    case $file in
      lib) find "$tree/lib" -maxdepth 1 -type f -name '*.so*' -exec patchelf --set-rpath '$ORIGIN' {} + ;;
      lib/client/*) ;;  # needs only libc
      lib/*) [[ -L $tree/$file ]] || patchelf --set-rpath '$ORIGIN/..' "$tree/$file" ;;
      *) patchelf --set-rpath '$ORIGIN/../lib' "$tree/$file" ;;
    esac
  done
}
