#!/bin/sh
# Usage: limit-folder.sh [FOLDER [SIZE]]
# Gives the folder of jobs' leases (default: /run/gpupool-slurm) a file system of its own (default: 64m), because users can fill their
# jobs' folders in it, and with them /run. Run it as root before slurmd starts. Does nothing if FOLDER is a mount or has leases.
set -eu
folder=${1:-/run/gpupool-slurm} size=${2:-64m}
[ -d "$folder" ] || { mkdir -p "$folder" && chmod 755 "$folder"; }
if mountpoint -q "$folder"; then exit 0; fi
if [ -n "$(ls -A "$folder")" ]; then
  echo "$folder has leases of jobs: its size is limited when the node has none and slurmd starts again" >&2
  exit 0
fi
# A lease takes four inodes and 16 KiB.
exec mount -t tmpfs -o "size=$size,nr_inodes=16k,mode=755,nosuid,nodev,noexec" gpupool-slurm "$folder"
