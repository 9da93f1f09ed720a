# Sourced by scripts/package.sh: collects the files of each package below $stage/PACKAGE, as they will be on the target, and below
# $runnable those of all packages together, because programs of one need libraries of another.
# shellcheck shell=bash disable=SC2154,SC2034  # variables of package.sh, and for it
# Variables of the caller: root, build, stage, runnable, scratch, version, full_version, epoch, maintainer.

prefix=usr/lib/gpupool  # gpupool's own tree; /usr/bin has links into it
packages=()             # those that have files, in the order of packaging/packages/

# read_settings PACKAGE: sets the variables of its settings.sh.
read_settings() {
  component='' summary='' description='' requires=() recommends=() suggests=() deb_depends=() rpm_requires=()
  # shellcheck source=packaging/packages/gpupool-client/settings.sh
  source "$root/packaging/packages/$1/settings.sh"
}

# siblings PACKAGE: prints all other packages of gpupool, also those that this build has no files of: an earlier one may have had.
siblings() {
  local folder
  for folder in "$root"/packaging/packages/gpupool-*/; do
    [[ $(basename "$folder") == "$1" ]] || basename "$folder"
  done
}

# Installs each component where its package has it, and adds the package's own files (packaging/packages/PACKAGE/files).
stage_files() {
  local folder package
  for folder in "$root"/packaging/packages/gpupool-*/; do
    package=$(basename "$folder")
    read_settings "$package"
    cmake --install "$build" --prefix "$stage/$package/$prefix" --component "$component" >"$scratch/install.log" 2>&1 ||
      die "cmake --install failed for '$component'; is $build built? $(tail -n 3 "$scratch/install.log")"
    if [[ ! -d $stage/$package ]]; then
      note "$package: left out, because the build has no files of '$component'"
      continue
    fi
    [[ ! -d ${folder}files ]] || cp -a "${folder}files/." "$stage/$package/"
    packages+=("$package")
  done
}

# Links programs from /usr/bin. They find their files by /proc/self/exe, which is the path in gpupool's own tree.
link_programs() {
  local package program
  for package in "${packages[@]}"; do
    for program in "$stage/$package/$prefix"/bin/*; do
      [[ -e $program && $program != */poold-worker ]] || continue  # only poold starts the worker
      mkdir -p "$stage/$package/usr/bin"
      ln -s "../lib/gpupool/bin/$(basename "$program")" "$stage/$package/usr/bin/"
    done
  done
}

# Prints the ELF files of a package.
elf_files() {
  local file
  while IFS= read -r -d '' file; do
    if is_elf "$file"; then printf '%s\n' "$file"; fi
  done < <(find "$stage/$1" -type f -print0 | sort -z)
}

# These libraries are the same in the releases of a distribution, which mends their security holes: they are not copied. The link lets
# pool-cdi mount them with the others into containers (client/cdi/shared_libraries.cc).
system_libraries='^lib(ssl|crypto|z|sqlite3|seccomp)\.so'

# Copies the libraries that programs need: to the package that alone needs one, otherwise to gpupool-common. The client library has
# none, because programs load it.
add_private_libraries() {
  local package name path needed target
  local -A owner=() source=()
  for package in "${packages[@]}"; do
    mapfile -t files < <(elf_files "$package" | grep -v "/$prefix/lib/client/" || true)
    ((${#files[@]})) || continue
    needed=$(needed_libraries "${files[@]}") || die "libraries are missing that $package needs"
    while read -r name path; do
      [[ -n $name ]] || continue
      source[$name]=$path
      if [[ ${owner[$name]:-$package} == "$package" ]]; then owner[$name]=$package; else owner[$name]=gpupool-common; fi
    done <<<"$needed"
  done
  for name in "${!owner[@]}"; do
    [[ ! $name =~ ^lib(a|t|ub)san\.so ]] || die "$build was built with a sanitizer, which packages cannot be"
    target=$stage/${owner[$name]}/$prefix/lib
    mkdir -p "$target"
    if [[ $name =~ $system_libraries ]]; then
      path=/usr/lib/${source[$name]#*/lib/}
      ln -s "$(realpath -ms --relative-to "/$prefix/lib" "$path")" "$target/$name"
    else
      cp -L "${source[$name]}" "$target/$name"
      add_licence "${owner[$name]}" "${source[$name]}"
    fi
  done
}

# Copies the licence of a library, where the distribution has it, and notes its package, with other names that it provides.
private_packages=()
add_licence() { # PACKAGE LIBRARY
  local owner target=$stage/$1/usr/share/doc/$1/licences
  command -v dpkg >/dev/null || return 0
  owner=$(dpkg -S "*/$(basename "$(realpath "$2")")" 2>/dev/null | head -n 1 | sed -E 's/[:,].*//') || true
  [[ -n $owner && -f /usr/share/doc/$owner/copyright ]] || die "cannot find the licence of $2, which belongs into $1"
  # shellcheck disable=SC2207  # names of packages have no spaces
  private_packages+=("$owner" $(dpkg-query -W -f '${Provides}' "$owner" | sed -E 's/ *\([^)]*\)//g; s/,/ /g'))
  mkdir -p "$target"
  cp -L "/usr/share/doc/$owner/copyright" "$target/$owner.txt"
}

# Removes symbols, and makes everything find the private libraries.
finish_binaries() {
  local package file
  for package in "${packages[@]}"; do
    while IFS= read -r file; do
      chmod u+w "$file"
      strip --strip-unneeded "$file"
      # shellcheck disable=SC2016  # $ORIGIN is for the dynamic linker
      case ${file#"$stage/$package/$prefix/"} in
        bin/*) point_to '$ORIGIN/../lib' "$file" ;;
        lib/softgpu/*) point_to '$ORIGIN/..' "$file" ;;
        lib/client/* | lib/slurm/*) point_to '' "$file" ;;
        lib/*) point_to '$ORIGIN' "$file" ;;
        *) die "$file is in no folder of gpupool's" ;;
      esac
    done < <(elf_files "$package")
  done
}

# Makes manual pages and shell completion from the programs' --help.
add_help_pages() {
  local package program name
  for package in "${packages[@]}"; do
    for program in "$stage/$package"/usr/bin/*; do
      [[ -e $program || -L $program ]] || continue
      name=$(basename "$program")
      python3 "$root/scripts/packages/help_pages.py" --name "$name" --version "$version" --epoch "$epoch" \
        "$runnable/$prefix/bin/$name" "$stage/$package/usr/share" || die "cannot make the manual page of $name"
    done
  done
}

make_runnable() {
  local package
  mkdir -p "$runnable"
  for package in "${packages[@]}"; do cp -al "$stage/$package/." "$runnable/"; done
}

add_documents() {
  local package documents=$stage/gpupool-common/usr/share/doc/gpupool-common
  mkdir -p "$documents/examples"
  cp -r "$root"/{README.md,SECURITY.md,docs} "$documents/"
  cp -r "$root/examples/monitoring" "$documents/examples/"
  gzip -9n <"$root/CHANGELOG.md" >"$documents/changelog.gz"
  for package in "${packages[@]}"; do
    mkdir -p "$stage/$package/usr/share/doc/$package"
    cp "$root/packaging/packages/copyright" "$stage/$package/usr/share/doc/$package/copyright"
    add_changelogs "$package"
  done
}

# Each package of Debian has the changes of the program and those of the package.
add_changelogs() { # PACKAGE
  local folder=$stage/$1/usr/share/doc/$1
  [[ $1 == gpupool-common ]] || ln -s ../gpupool-common/changelog.gz "$folder/changelog.gz"
  printf 'gpupool (%s) unstable; urgency=medium\n\n  * %s.\n\n -- %s  %s\n' "$full_version" \
    "The changes of gpupool are in /usr/share/doc/gpupool-common/changelog.gz" "$maintainer" "$(LC_ALL=C date -uRd "@$epoch")" |
    gzip -9n >"$folder/changelog.Debian.gz"
}

# The same modes and times, whatever the umask and the time of the build.
normalise() {
  find "$stage" -type d -exec chmod 755 {} +
  find "$stage" -type f -perm /111 -exec chmod 755 {} +
  find "$stage" -type f ! -perm /111 -exec chmod 644 {} +
  find "$stage" -exec touch --no-dereference -d "@$epoch" {} +
}
