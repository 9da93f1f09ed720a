# Sourced by scripts/package.sh: makes .deb files of the staged trees with dpkg-deb.
# shellcheck shell=bash disable=SC2154,SC2016  # variables of package.sh and of the settings; text of the packages' scripts

# Prints the packages, with the oldest versions, that have the system's libraries for a package's files, as dpkg-shlibdeps finds them.
deb_libraries() { # PACKAGE
  local files
  mapfile -t files < <(elf_files "$1")
  ((${#files[@]})) || return 0
  mkdir -p "$scratch"/shlibs/{debian,lib}
  find "$runnable/$prefix/lib" -maxdepth 1 -type f -name '*.so*' -exec ln -sft "$scratch/shlibs/lib" {} +
  printf 'Source: gpupool\n\nPackage: %s\nArchitecture: any\n' "$1" >"$scratch/shlibs/debian/control"
  # It finds the packages of the private libraries' originals, too.
  (cd "$scratch/shlibs" && dpkg-shlibdeps -O --ignore-missing-info --warnings=0 -l"$scratch/shlibs/lib" \
    "${files[@]/#/-e}") >"$scratch/shlibs/found" 2>"$scratch/shlibs/errors" ||
    die "dpkg-shlibdeps failed for $1: $(<"$scratch/shlibs/errors")"
  sed -n 's/^shlibs:Depends=//p' "$scratch/shlibs/found" | awk -v private=" ${private_packages[*]} " -v RS=', |\n' \
    'index(private, " " $1 " ") == 0 { printf "%s%s", separator, $0; separator = ", " }'
}

join_by() { # SEPARATOR WORD...
  local separator=$1 text=${2:-} word
  for word in "${@:3}"; do text+=$separator$word; done
  printf '%s' "$text"
}

# Prints a field of control, unless it has no value.
deb_field() { [[ -z $2 ]] || printf '%s: %s\n' "$1" "$2"; }

# A file may move between gpupool's packages from one version to the next, above all a private library, when the number of packages that
# need it changes. dpkg lets a package take a file of another one's only with Replaces, and Breaks keeps the other one's old version, which
# lacks the file then, from being used. A plugin for Slurm breaks other releases of Slurm, too.
deb_older_versions() { # PACKAGE
  local sibling older=() breaks=()
  for sibling in $(siblings "$1"); do older+=("$sibling (<< $full_version)"); done
  if [[ $1 == gpupool-slurm && -n $slurm_release ]]; then
    for sibling in slurm-client slurmd; do breaks+=("$sibling (<< $slurm_release)" "$sibling (>= $(next_slurm)~)"); done
  fi
  deb_field Breaks "$(join_by ', ' "${older[@]}" "${breaks[@]}")"
  deb_field Replaces "$(join_by ', ' "${older[@]}")"
}

deb_control() { # PACKAGE
  local depends=() needed size
  needed=$(deb_libraries "$1")
  [[ -z $needed ]] || depends+=("$needed")
  depends+=("${requires[@]/%/ (= $full_version)}" "${deb_depends[@]}")
  size=$(find "$stage/$1" -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib + 0 }')
  printf 'Package: %s\nSource: gpupool\nVersion: %s\nArchitecture: %s\n' "$1" "$full_version" "$(dpkg --print-architecture)"
  printf 'Maintainer: %s\nInstalled-Size: %s\nSection: utils\nPriority: optional\n' "$maintainer" "$size"
  deb_field Depends "$(join_by ', ' "${depends[@]}")"
  deb_field Recommends "$(join_by ', ' "${recommends[@]}")"
  deb_field Suggests "$(join_by ', ' "${suggests[@]}")"
  deb_older_versions "$1"
  printf 'Description: %s\n' "$summary"
  sed 's/^$/./; s/^/ /' <<<"$description"
}

# A maintainer script: the package's functions, and the call that dpkg's arguments ask for.
deb_script() { # PACKAGE NAME
  local calls
  case $2 in
    postinst) calls='case $1 in configure) after_installation "${2:-}" ;; esac' ;;
    prerm) calls='case $1 in remove) before_removal ;; esac' ;;
    postrm) calls='case $1 in remove) after_removal ;; purge) purge ;; esac' ;;
  esac
  printf '#!/bin/sh\nset -e\n'
  cat "$root/packaging/packages/functions.sh" "$root/packaging/packages/$1/scripts.sh" | grep -v '^#'
  printf '%s\n' "$calls"
}

make_deb() { # PACKAGE
  local control=$stage/$1/DEBIAN script file
  file=${1}_${full_version}_$(dpkg --print-architecture).deb
  read_settings "$1"
  mkdir "$control"
  deb_control "$1" >"$control/control"
  (cd "$stage/$1" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0r md5sum) >"$control/md5sums"
  (cd "$stage/$1" && find etc -type f -printf '/%p\n' 2>/dev/null | LC_ALL=C sort) >"$control/conffiles" || true
  [[ -s $control/conffiles ]] || rm "$control/conffiles"
  if [[ -f $root/packaging/packages/$1/scripts.sh ]]; then
    for script in postinst prerm postrm; do
      deb_script "$1" "$script" >"$control/$script"
      chmod 755 "$control/$script"
    done
  fi
  find "$control" -type f ! -perm /111 -exec chmod 644 {} +
  chmod 755 "$control"
  find "$control" -exec touch -d "@$epoch" {} +
  touch -d "@$epoch" "$stage/$1"
  SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group -Zzstd -z10 --threads-max=1 --build "$stage/$1" "$output/$file" >/dev/null
  rm -r "$control"
  touch -d "@$epoch" "$stage/$1"
  note "$file, $(du -h "$output/$file" | cut -f1)"
}

# An index of $output, with which apt installs from the folder: deb [trusted=yes] file:/FOLDER ./
make_deb_index() {
  (cd "$output" && dpkg-scanpackages --multiversion . 2>"$scratch/index.log" >.Packages) || die "dpkg-scanpackages failed: $(<"$scratch/index.log")"
  mv "$output/.Packages" "$output/Packages"  # at once: machines may be reading it
}
