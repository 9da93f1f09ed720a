#!/usr/bin/env bash
# Usage: scripts/try-others.sh FOLDER [--suite NAME] [--only PATTERN] [--build BUILD] [--python PYTHON] [--jobs N] [--seconds N] [--list]
# Runs other projects' own test suites through poold on softgpu and directly on softgpu, compares the results, and prints the
# failures that tests/others/expectations/ does not explain. FOLDER holds your checkouts of the projects, named like the
# suites: cuda-samples, numba-cuda, cupy, warp, tinygrad, ggml. Suites without a checkout are left out; nothing is
# downloaded. --python is an interpreter with the packages that the suite needs. Exits with 1 if there are new failures.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case ${1:-} in
  '' | -h | --help) usage && exit ;;
esac
exec python3 "$root/tests/others/try_others.py" "$@"
