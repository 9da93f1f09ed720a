#!/usr/bin/env bash
# Usage: scripts/make-index.sh [OUTPUT_FOLDER [FOLDER...]]
# Makes OUTPUT_FOLDER (default: build/index) an index of packages, from which apt and pip install gpupool's client, as files or through
# any web server: with the .deb packages and the wheels of the FOLDERs (default: build/packages and build/wheel, where scripts/package.sh
# and scripts/make-wheel.sh leave them). What OUTPUT_FOLDER has already stays, so earlier versions can still be installed. Nothing is
# signed. Prints the lines with which machines install from the index.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=scripts/packages/deb.sh
source "$root/scripts/packages/deb.sh"

case ${1:-} in
  -h | --help) usage && exit ;;
  -*) die "unknown option '$1'; try --help" ;;
esac
output=$(realpath -m "${1:-$root/build/index}")
folders=("${@:2}")
((${#folders[@]})) || folders=("$root/build/packages" "$root/build/wheel")

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
umask 022

# copy_packages PATTERN TO: copies the files of the folders; succeeds if TO has one then.
copy_packages() {
  local folder files=()
  for folder in "${folders[@]}"; do
    [[ ! -d $folder || $folder -ef $2 ]] || mapfile -d '' -t -O ${#files[@]} files < <(find "$folder" -maxdepth 1 -type f -name "$1" -print0)
  done
  if ((${#files[@]})); then mkdir -p "$2" && cp -pt "$2" "${files[@]}"; fi
  compgen -G "$2/$1" >/dev/null
}

# The pages of a "simple repository", as pip reads them (PEP 503).
make_wheel_index() {
  local folder=$output/simple/gpupool wheel
  for wheel in "$folder"/*.whl; do
    printf '<a href="%s#sha256=%s">%s</a><br>\n' "${wheel##*/}" "$(sha256sum <"$wheel" | cut -d ' ' -f 1)" "${wheel##*/}"
  done >"$folder/.links"
  sed '1i <!DOCTYPE html>' "$folder/.links" >"$folder/.index"
  rm "$folder/.links"
  mv "$folder/.index" "$folder/index.html"  # at once: machines may be reading it
  printf '<!DOCTYPE html>\n<a href="gpupool/">gpupool</a><br>\n' >"$output/simple/index.html"
}

debs=yes wheels=yes
copy_packages 'gpupool-*.deb' "$output" || debs=no
copy_packages 'gpupool-*.whl' "$output/simple/gpupool" || wheels=no
[[ $debs$wheels != nono ]] || die "no packages in ${folders[*]}: make them with scripts/package.sh or scripts/make-wheel.sh"
say "$output, here as file:$output; elsewhere with the address of a web server in its place:"
if [[ $debs == yes ]]; then
  command -v dpkg-scanpackages >/dev/null || die "dpkg-scanpackages is missing (scripts/install-dependencies.sh --packages installs it)"
  make_deb_index
  note "echo 'deb [trusted=yes] file:$output ./' >/etc/apt/sources.list.d/gpupool.list && apt-get update && apt-get install -y gpupool-client"
fi
if [[ $wheels == yes ]]; then
  make_wheel_index
  note "pip install --index-url file://$output/simple gpupool"
fi
