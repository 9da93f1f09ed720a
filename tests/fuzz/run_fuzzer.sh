#!/usr/bin/env bash
# Usage: run_fuzzer.sh PROGRAM TARGET SECONDS FOLDER
# Runs a libFuzzer program as ctest does, with the same seed each time, so that what is not found today is not found in an unrelated change (scripts/fuzz.sh
# takes another one each time): all inputs that the repository has for it (seeds/TARGET and corpora/TARGET.tar.zst), then new ones, SECONDS in all
# or as long as the first part takes. FOLDER keeps inputs for the next run, and one that fails, as FOLDER/failed-*; `PROGRAM FILE` repeats it.
set -euo pipefail
program=$1 target=$2 seconds=$3 folder=$4
here=$(dirname "${BASH_SOURCE[0]}")

mkdir -p "$folder/found" "$folder/kept"
if [[ -f $here/corpora/$target.tar.zst ]]; then tar -C "$folder/kept" --zstd -xf "$here/corpora/$target.tar.zst"; fi
exec "$program" -seed=1 -max_total_time="$seconds" -max_len=8192 -timeout=60 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$folder/failed-" \
  "$folder/found" "$folder/kept" "$here/seeds/$target"
