#!/usr/bin/env bash
# Usage: scripts/package.sh [--no-install] [--build FOLDER] [--only deb|rpm|tar] [--revision N] [OUTPUT_FOLDER]
# Makes packages of gpupool in OUTPUT_FOLDER (default: build/packages): gpupool-client, -server, -scheduler, -softgpu, -slurm (if the
# plugin for Slurm was built) and -common, which the others need, as .deb and .rpm, with an index with which apt installs from the folder; and
# the archive of scripts/make-bundle.sh. The packages have the shared libraries that the programs need beyond the C and C++ run time,
# so they install on this distribution's release and on newer ones. The same build and commit make the same packages, byte for byte.
# --no-install    does not install packages that this needs
# --build FOLDER  packs this build, and makes no archive (default: the release preset, which is built)
# --only KIND     makes only .deb, .rpm or the archive
# --revision N    of the packages of one version of gpupool (default: 1)
# SOURCE_DATE_EPOCH is the time of all files (default: that of the last commit), GPUPOOL_MAINTAINER the field Maintainer of the .debs.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=scripts/packages/libraries.sh
source "$root/scripts/packages/libraries.sh"
# shellcheck source=scripts/packages/stage.sh
source "$root/scripts/packages/stage.sh"
# shellcheck source=scripts/packages/deb.sh
source "$root/scripts/packages/deb.sh"
# shellcheck source=scripts/packages/rpm.sh
source "$root/scripts/packages/rpm.sh"

install=yes build='' only='' revision=1 output=$root/build/packages
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --no-install) install=no ;;
    --build | --only | --revision)
      [[ -n ${2:-} ]] || die "$1 needs a value; try --help"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    -*) die "unknown option '$1'; try --help" ;;
    *) output=$(realpath -m "$1") ;;
  esac
  shift
done
[[ $only =~ ^(|deb|rpm|tar)$ ]] || die "--only $only: must be deb, rpm or tar"
[[ $revision =~ ^[0-9]+$ ]] || die "--revision $revision: must be a number"
[[ -z $build || $only != tar ]] || die "--only tar conflicts with --build: scripts/make-bundle.sh builds for itself"
[[ -z $build ]] || build=$(realpath -m "$build")

[[ $install == no ]] || "$root/scripts/install-dependencies.sh" --packages
tools=(cmake patchelf python3 strip)
[[ $only == rpm ]] || tools+=(dpkg-deb dpkg-shlibdeps dpkg-scanpackages)
[[ $only == deb ]] || tools+=(rpmbuild)
if [[ $only == tar ]]; then tools=(); fi
for tool in "${tools[@]}"; do command -v "$tool" >/dev/null || die "$tool is missing (scripts/install-dependencies.sh --packages installs it)"; done

umask 022
mkdir -p "$output"
if [[ -z $build && $only =~ ^(|tar)$ ]]; then "$root/scripts/make-bundle.sh" --no-install "$output"; fi
[[ $only != tar ]] || exit 0
if [[ -z $build ]]; then
  build=$root/build/release
  "$root/scripts/build.sh" release --no-tests
fi
[[ -f $build/cmake_install.cmake ]] || die "$build is not a build folder; make one with scripts/build.sh"

version=$(sed -nE 's/^project\(gpupool VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")
full_version=$version-$revision
# SOURCE_DATE_EPOCH of the environment, else the commit's time, else that of the newest entry of the changelog's file.
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || stat -c %Y "$root/CHANGELOG.md")}
maintainer=${GPUPOOL_MAINTAINER:-gpupool contributors <contributors@gpupool.invalid>}

# The release of Slurm that the plugin was built for, for example 22.05, and the next one. A plugin fits one release.
slurm_release='' slurm_number=''
slurm_header=$(sed -n 's/^SLURM_INCLUDE_DIR:PATH=//p' "$build/CMakeCache.txt" 2>/dev/null || true)/slurm/slurm_version.h
if [[ -f $slurm_header ]]; then
  slurm_number=$(($(sed -nE 's/^#define SLURM_VERSION_NUMBER (0x[0-9a-f]+)/\1/p' "$slurm_header") >> 8))
  slurm_release=$(printf '%d.%02d' $((slurm_number >> 8)) $((slurm_number & 255)))
fi
next_slurm() { printf '%d.%02d' $((slurm_number >> 8)) $(((slurm_number & 255) + 1)); }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
stage=$scratch/stage runnable=$scratch/runnable
say "collecting the files of $build"
stage_files
((${#packages[@]})) || die "$build has no files of any package"
[[ " ${packages[*]} " == *" gpupool-common "* ]] || die "$build has no pool-admin, which gpupool-common consists of"
link_programs
add_private_libraries
finish_binaries
make_runnable
built=$("$runnable/$prefix/bin/pool-admin" --version) || die "the packed pool-admin does not start"
[[ $built == "pool-admin $version" ]] || die "$build has $built, but this tree is gpupool $version: build it again"
add_help_pages
add_documents
normalise

[[ $only == rpm ]] || rm -f "$output"/gpupool-*_"${full_version}"_*.deb "$output/Packages"
[[ $only == deb ]] || rm -f "$output"/gpupool-*-"$full_version".*.rpm
if [[ $only != rpm ]]; then
  say "making .deb packages in $output"
  for package in "${packages[@]}"; do make_deb "$package"; done
  make_deb_index
fi
if [[ $only != deb ]]; then
  say "making .rpm packages in $output"
  make_rpms
fi
