# Sourced by scripts that need gpupool's programs with all shared libraries that they load beyond the C and C++ run time, as
# in a bundle of scripts/make-bundle.sh. Needs patchelf.
# shellcheck shell=bash
# shellcheck source=scripts/packages/libraries.sh
source "$(dirname "${BASH_SOURCE[0]}")/../packages/libraries.sh"

# make_tree BUILD TREE FILE...: copies files of a build folder, named by their paths in it, to the same paths in TREE, and the
# libraries that they need to TREE/lib, where they find them.
make_tree() {
  local build=$1 tree=$2 file library path needed
  shift 2
  mkdir -p "$tree/lib"
  (cd "$build" && cp -a --parents "$@" "$tree/")
  needed=$(cd "$build" && needed_libraries "$@") || return 1
  while read -r library path; do
    [[ -z $library || -e $tree/lib/$library ]] || cp -L "$path" "$tree/lib/$library"
  done <<<"$needed"
  # shellcheck disable=SC2016  # $ORIGIN is for the dynamic linker
  for file in "$@" lib; do
    case $file in
      lib) find "$tree/lib" -maxdepth 1 -type f -name '*.so*' -exec patchelf --set-rpath '$ORIGIN' {} + ;;
      lib/client/*) ;;  # needs only libc
      lib/*) [[ -L $tree/$file ]] || point_to '$ORIGIN/..' "$tree/$file" ;;
      *) point_to '$ORIGIN/../lib' "$tree/$file" ;;
    esac
  done
}
