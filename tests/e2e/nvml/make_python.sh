#!/bin/sh
# Usage: make_python.sh FOLDER
# Makes FOLDER a virtual environment with NVIDIA's own binding of NVML (nvidia-ml-py), once. Status 77, with the reason, where that cannot be.
set -u
folder=$1
skip() { echo "skipped: $1"; exit 77; }
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9
[ -e "$folder/done" ] && exit 0
python3 -m venv "$folder" >/dev/null 2>&1 || skip "python3 has no venv"
timeout 60 "$folder/bin/pip" install --quiet --disable-pip-version-check --retries 0 'nvidia-ml-py>=13,<14' >/dev/null 2>&1 ||
  skip "nvidia-ml-py cannot be had from PyPI"
touch "$folder/done"
