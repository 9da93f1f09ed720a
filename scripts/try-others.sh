#!/usr/bin/env bash
# Usage: scripts/try-others.sh FOLDER [--suite NAME] [--only PATTERN] [--build BUILD] [--python PYTHON] [--jobs N] [--seconds N] [--list]
# Runs other projects' own test suites through poold on softgpu and directly on softgpu, compares the two, and prints the failures that
# tests/others/expectations/ does not give a reason for. FOLDER holds checkouts, which you make yourself, named as the suites are:
# cuda-samples, numba-cuda, cupy, warp, tinygrad, ggml; suites without a checkout are left out. Nothing is downloaded.
# --python is an interpreter that has the packages that the suite needs. Exits with 1 if there are new failures.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case ${1:-} in
  '' | -h | --help) usage && exit ;;
esac
exec python3 "$root/tests/others/try_others.py" "$@"
