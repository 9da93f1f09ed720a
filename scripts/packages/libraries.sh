# Sourced by the scripts that give gpupool's programs copies of the shared libraries that they need, so that these do not depend
# on the versions that a distribution's release has. Needs ldd, and patchelf for point_to().
# shellcheck shell=bash

# Every machine has these libraries, and a second copy in one process would cause failures. (The same names: client/cdi/shared_libraries.cc.)
run_time_libraries='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|libcuda)\.so'

# needed_libraries FILE...: prints the other libraries that the files load at their start, as lines `NAME PATH`. Fails if one is missing.
needed_libraries() {
  local name path status=0 listed
  listed=$(ldd "$@" 2>/dev/null | awk '$2 == "=>" { print $1, $3 }' | sort -u) || true  # ldd fails for scripts
  while read -r name path; do
    [[ -n $name && ! $name =~ $run_time_libraries ]] || continue
    if [[ $path == /* ]]; then
      printf '%s %s\n' "$name" "$path"
    else
      printf 'error: %s is needed and not installed\n' "$name" >&2
      status=1
    fi
  done <<<"$listed"
  return $status
}

# point_to RUNPATH FILE...: makes files find libraries there only, beyond the system's folders. An empty RUNPATH removes it.
point_to() {
  local folder=$1
  shift
  if [[ -n $folder ]]; then patchelf --set-rpath "$folder" "$@"; else patchelf --remove-rpath "$@"; fi
}

# is_elf FILE: succeeds for programs and libraries, not for scripts, texts and links.
is_elf() {
  local start=''
  [[ -f $1 && ! -L $1 ]] || return 1
  IFS= LC_ALL=C read -r -N 4 start <"$1" 2>/dev/null || true
  [[ $start == $'\x7fELF' ]]
}
