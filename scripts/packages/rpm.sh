# Sourced by scripts/package.sh: makes .rpm files of the staged trees with rpmbuild.
# shellcheck shell=bash disable=SC2154,SC2016  # variables of package.sh and of the settings; text of the packages' scripts

# rpm finds needed libraries itself. The private ones are neither offered to other packages nor asked of them; nor is libcuda.so.1.
rpm_private_libraries() {
  local names
  names=$(find "$runnable/$prefix/lib" -maxdepth 1 -type f -name '*.so*' -printf '%f\n' | LC_ALL=C sort | sed 's/[.+]/[&]/g' | paste -sd '|')
  printf '%%global __provides_exclude_from ^/%s/.*$\n' "$prefix"
  printf '%%global __requires_exclude ^(%s)([(]|$)\n' "${names:-none}"
}

rpm_scripts() { # PACKAGE
  local functions
  [[ -f $root/packaging/packages/$1/scripts.sh ]] || return 0
  functions=$(cat "$root/packaging/packages/functions.sh" "$root/packaging/packages/$1/scripts.sh" | grep -v '^#' | sed 's/%/%%/g')
  # rpm counts the versions of the package that will be installed; there is no purge.
  printf '%%post -n %s\n%s\nif [ "$1" -gt 1 ]; then after_installation previous; else after_installation ""; fi\n\n' "$1" "$functions"
  printf '%%preun -n %s\n%s\nif [ "$1" -eq 0 ]; then before_removal; fi\n\n' "$1" "$functions"
  printf '%%postun -n %s\n%s\nif [ "$1" -eq 0 ]; then after_removal; fi\n\n' "$1" "$functions"
}

# Prints the package's files with their modes; folders that only gpupool has belong to it, too.
rpm_files() { # PACKAGE
  printf '%%files -n %s\n%%defattr(-,root,root,-)\n' "$1"
  (cd "$stage/$1" && find . -mindepth 1 -printf '%y %P\n' | LC_ALL=C sort -k2) | while read -r kind path; do
    case $kind:$path in
      d:*gpupool* | d:*.service.d) printf '%%dir "/%s"\n' "$path" ;;
      d:*) ;;
      *:etc/*) printf '%%config(noreplace) "/%s"\n' "$path" ;;
      *:usr/share/man/* | *:usr/share/doc/*) printf '%%doc "/%s"\n' "$path" ;;
      *) printf '"/%s"\n' "$path" ;;
    esac
  done
  printf '\n'
}

rpm_package() { # PACKAGE
  local word sibling
  printf '%%package -n %s\nSummary: %s\n' "$1" "$summary"
  for word in "${requires[@]}"; do printf 'Requires: %s%%{?_isa} = %%{version}-%%{release}\n' "$word"; done
  for word in "${rpm_requires[@]}"; do printf 'Requires: %s\n' "$word"; done
  # As Breaks and Replaces of the .debs: a file may move between the packages. rpm lets it, in one transaction with both new packages, which
  # this asks for. Not Obsoletes, which would remove the other package.
  for sibling in $(siblings "$1"); do printf 'Conflicts: %s < %%{version}-%%{release}\n' "$sibling"; done
  if [[ $1 == gpupool-slurm && -n $slurm_release ]]; then printf 'Conflicts: slurm < %s\nConflicts: slurm >= %s\n' "$slurm_release" "$(next_slurm)"; fi
  printf '%%description -n %s\n%s\n\n' "$1" "${description//%/%%}"
}

rpm_spec() {
  local package
  # The files are finished: rpmbuild must not strip, compress or search them for debugging information.
  printf '%%global debug_package %%{nil}\n%%global __os_install_post %%{nil}\n%%global _build_id_links none\n'
  printf '%%global _binary_payload w10.zstdio\n%%global _buildhost localhost\n%%global use_source_date_epoch_as_buildtime 1\n'
  printf '%%global clamp_mtime_to_source_date_epoch 1\n%%global source_date_epoch_from_changelog 0\n'
  rpm_private_libraries
  printf 'Name: gpupool\nVersion: %s\nRelease: %s\nSummary: GPUs of other machines\nLicense: Apache-2.0\n\n' "$version" "$revision"
  printf '%%description\n%%{summary}.\n\n'
  for package in "${packages[@]}"; do
    read_settings "$package"
    rpm_package "$package"
  done
  printf '%%install\nmkdir -p %%{buildroot}\n'
  for package in "${packages[@]}"; do printf 'cp -a "%s/." %%{buildroot}/\n' "$stage/$package"; done
  printf '\n'
  for package in "${packages[@]}"; do
    rpm_scripts "$package"
    rpm_files "$package"
  done
}

# Distributions with rpm have the system's libraries and the functions of zsh in other folders than Debian, and no changelog of Debian's.
move_for_rpm() {
  local package link target
  for package in "${packages[@]}"; do
    rm "$stage/$package/usr/share/doc/$package/changelog.Debian.gz"
    [[ ! -d $stage/$package/usr/share/zsh/vendor-completions ]] ||
      mv "$stage/$package/usr/share/zsh/vendor-completions" "$stage/$package/usr/share/zsh/site-functions"
    for link in "$stage/$package/$prefix"/lib/*; do
      [[ -L $link ]] || continue
      target=$(readlink "$link")
      if [[ $target == ../../*-linux-gnu/* ]]; then ln -sfn "../../../lib64/${target##*/}" "$link"; fi
    done
  done
  normalise
}

make_rpms() {
  local file
  move_for_rpm
  rpm_spec >"$scratch/gpupool.spec"
  quietly "$scratch/rpmbuild.log" env SOURCE_DATE_EPOCH="$epoch" rpmbuild -bb --define "_topdir $scratch/rpm" \
    --define "_rpmdir $scratch/rpms" --define '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' "$scratch/gpupool.spec"
  for file in "$scratch"/rpms/*.rpm; do
    mv "$file" "$output/"
    note "$(basename "$file"), $(du -h "$output/$(basename "$file")" | cut -f1)"
  done
}
