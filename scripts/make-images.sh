#!/usr/bin/env bash
# Usage: scripts/make-images.sh [--tool podman|buildah|docker] [--base IMAGE] [--only NAME] [FOLDER|ARCHIVE]
# Builds the images localhost/gpupool-poold, -scheduler, -kubernetes and -example from packaging/containers/, with the tags
# latest and gpupool's version.
# FOLDER       a build folder (default: build/release, made by scripts/build.sh), or an unpacked bundle
# ARCHIVE      a bundle, made by scripts/make-bundle.sh
# --tool NAME  builds with this program (default: the first of podman, buildah and docker that is installed)
# --base IMAGE the image to start from (default: debian:bookworm-slim, which is downloaded). It must have a C and C++ run
#              time as new as those of the machine on which gpupool was built, and bash
# --only NAME  builds only poold, scheduler, kubernetes or example; may be repeated
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=scripts/images/tree.sh
source "$root/scripts/images/tree.sh"

tool='' base=docker.io/library/debian:bookworm-slim source=$root/build/release images=()
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --tool | --base | --only)
      [[ -n ${2:-} ]] || die "$1 needs a value; try --help"
      case $1 in
        --tool) tool=$2 ;;
        --base) base=$2 ;;
        --only) images+=("$2") ;;
      esac
      shift
      ;;
    -*) die "unknown option '$1'; try --help" ;;
    *) source=$1 ;;
  esac
  shift
done
((${#images[@]})) || images=(poold scheduler kubernetes example)
for image in "${images[@]}"; do
  [[ -e $root/packaging/containers/$image.Containerfile ]] || die "--only $image: must be poold, scheduler, kubernetes or example"
done
if [[ -z $tool ]]; then
  for candidate in podman buildah docker; do
    if command -v "$candidate" >/dev/null; then tool=$candidate && break; fi
  done
  [[ -n $tool ]] || die "none of podman, buildah and docker is installed (apt-get install podman)"
fi
# Only images in Docker's format have health checks.
case $tool in
  podman | buildah) build=("$tool" build --quiet --format docker) ;;
  docker) build=(docker build --quiet) ;;
  *) die "--tool $tool: must be podman, buildah or docker" ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [[ -f $source ]]; then
  mkdir "$scratch/bundle"
  tar -C "$scratch/bundle" --strip-components=1 -xzf "$source"
  source=$scratch/bundle
fi
[[ -x $source/bin/poold ]] || die "$source has no bin/poold: build it with scripts/build.sh, or name a build folder or a bundle"
[[ ! -e $source/CMakeCache.txt ]] || command -v patchelf >/dev/null ||
  die "patchelf is missing, which makes programs find libraries in the image (apt-get install patchelf)"
version=$("$source/bin/poold" --version) || die "cannot start $source/bin/poold, whose version the images get"
version=${version##* }

# place IMAGE FILE...: puts files, with the libraries of bin/ and lib/, into the context of an image: bin/NAME and lib/NAME
# into /usr/lib/gpupool, with links in /usr/bin; examples/NAME into /usr/bin.
place() {
  local target=$scratch/$1/root/usr file own=()
  shift
  mkdir -p "$target/bin" "$target/lib/gpupool"
  for file in "$@"; do
    case $file in
      examples/*) cp -L "$source/$file" "$target/bin/" && continue ;;
      bin/poold-worker) ;;
      bin/*) ln -s "../lib/gpupool/$file" "$target/$file" ;;
    esac
    own+=("$file")
  done
  ((${#own[@]})) || return 0
  if [[ -e $source/CMakeCache.txt ]]; then
    make_tree "$source" "$target/lib/gpupool" "${own[@]}"
  else
    (cd "$source" && cp -a --parents "${own[@]}" "$target/lib/gpupool/" && find lib -maxdepth 1 -name '*.so*' -exec cp -a -t "$target/lib/gpupool/lib" {} +)
  fi
}

prepare() {
  local files
  mkdir "$scratch/$1"
  case $1 in
    poold)
      mapfile -t files < <(cd "$source" && find lib/softgpu -name '*.so*')
      place poold bin/poold bin/poold-worker bin/pool-admin "${files[@]}"
      mkdir -p "$scratch/poold/root/run/gpupool"
      ;;
    scheduler)
      place scheduler bin/pool-scheduler bin/pool-admin
      mkdir -m 700 "$scratch/scheduler/state"
      ;;
    kubernetes)
      mapfile -t files < <(cd "$source" && find lib/client -not -type d)
      place kubernetes bin/gpupool-kubernetes bin/pool-lease bin/pool-smi "${files[@]}"
      ;;
    example)
      [[ -x $source/examples/vector_add ]] || die "$source has no examples/vector_add: it was built without nvcc"
      place example examples/vector_add
      ;;
  esac
}

for image in "${images[@]}"; do
  say "building localhost/gpupool-$image"
  prepare "$image"
  chmod -R a+rX,go-w "$scratch/$image/root"  # other users run the programs, whatever the builder's umask is
  "${build[@]}" --build-arg "BASE=$base" --build-arg "VERSION=$version" --tag "localhost/gpupool-$image:latest" \
    --tag "localhost/gpupool-$image:$version" --file "$root/packaging/containers/$image.Containerfile" "$scratch/$image"
  rm -rf "${scratch:?}/$image"
done
