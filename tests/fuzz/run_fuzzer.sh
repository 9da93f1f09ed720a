#!/usr/bin/env bash
# Usage: run_fuzzer.sh PROGRAM TARGET SECONDS FOLDER
# Runs a libFuzzer program for ctest: first all inputs of the repository (seeds/TARGET and corpora/TARGET.tar.zst), then new
# ones, for SECONDS in all or as long as the first part takes. The random seed is always the same, so that unrelated changes
# do not cause new findings (scripts/fuzz.sh uses another seed each time). FOLDER keeps inputs for the next run, and a
# failing input as FOLDER/failed-*; `PROGRAM FILE` reproduces it.
set -euo pipefail
program=$1 target=$2 seconds=$3 folder=$4
here=$(dirname "${BASH_SOURCE[0]}")

mkdir -p "$folder/found" "$folder/kept"
if [[ -f $here/corpora/$target.tar.zst ]]; then tar -C "$folder/kept" --zstd -xf "$here/corpora/$target.tar.zst"; fi
exec "$program" -seed=1 -max_total_time="$seconds" -max_len=8192 -timeout=60 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$folder/failed-" \
  "$folder/found" "$folder/kept" "$here/seeds/$target"
