#!/usr/bin/env bash
# Usage: scripts/fetch-cuda-headers.sh VERSION FOLDER
# Downloads the headers of a CUDA version, for example 13.0.88, from NVIDIA's Python package into FOLDER/include unless they
# are already there. Fails if PyPI cannot be reached. Needs python3 with pip or venv.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ ${1:-} != -h && ${1:-} != --help ]] || { usage; exit 0; }
version=${1:?VERSION is missing; try --help} folder=${2:?FOLDER is missing; try --help}
[[ ! -f $folder/include/cuda.h ]] || exit 0

mkdir -p "$(dirname "$folder")"
scratch=$(mktemp -d "$(dirname "$folder")/.fetch.XXXXXX")  # on FOLDER's file system, so that the last step is a rename
trap 'rm -rf "$scratch"' EXIT
python=python3
if ! python3 -m pip --version >/dev/null 2>&1; then
  python3 -m venv "$scratch/environment" >/dev/null 2>&1 || die "python3 has neither pip nor venv: apt-get install python3-venv"
  python=$scratch/environment/bin/python
fi
# Since CUDA 13 the package's name has no version.
package=nvidia-cuda-runtime
((${version%%.*} >= 13)) || package=nvidia-cuda-runtime-cu${version%%.*}
"$python" -m pip download --quiet --no-deps --only-binary=:all: --retries 1 --dest "$scratch" "$package==$version" ||
  die "cannot download $package $version from PyPI"
"$python" - "$scratch" "$scratch/headers" <<'PYTHON'
import glob, os, sys, zipfile
wheels, folder = sys.argv[1:]
for wheel in glob.glob(wheels + "/*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            # nvidia/cuda_runtime/include/ of CUDA 11 and 12, nvidia/cu13/include/ of CUDA 13
            parts = name.split("/")
            if parts[0] != "nvidia" or len(parts) < 4 or parts[2] != "include" or name.endswith("/"):
                continue
            target = os.path.join(folder, *parts[2:])
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with archive.open(name) as source, open(target, "wb") as out:
                out.write(source.read())
PYTHON
[[ -f $scratch/headers/include/cuda.h ]] || die "$package $version has no cuda.h"
# Atomic, also if several processes fetch the same version: the later ones find the folder.
mv -T "$scratch/headers" "$folder" 2>/dev/null || [[ -f $folder/include/cuda.h ]] || die "cannot write $folder"
