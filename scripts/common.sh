# Sourced by the scripts of this folder; assumes `set -euo pipefail`.
# shellcheck shell=bash disable=SC2034  # the variables are for the scripts that source this

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(nproc)
test_jobs=$((jobs + 2))  # tests spend about half of their time waiting for processes, timers and connections

if [[ -t 1 ]]; then bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'; else bold='' green='' red='' plain=''; fi

say() { printf '%s==> %s%s\n' "$bold" "$*" "$plain"; }
note() { printf '    %s\n' "$*"; }
die() {
  printf '%serror: %s%s\n' "$red" "$*" "$plain" >&2
  exit 1
}

# Prints the version of the newest installed clang that has libFuzzer. Exit status 1: there is none.
find_clang() {
  local version
  for version in 19 18 17 16; do
    if command -v "clang++-$version" >/dev/null && [[ -f $("clang++-$version" -print-file-name=libclang_rt.fuzzer.a 2>/dev/null) ||
      -f $("clang++-$version" -print-file-name="libclang_rt.fuzzer-$(uname -m).a" 2>/dev/null) ]]; then
      echo "$version" && return
    fi
  done
  return 1
}

# Prints the target of each fuzzer of tests/fuzz, one per line; its program is fuzz_TARGET.
fuzz_targets() { sed -nE 's/^gpupool_fuzzer\((\w+).*/\1/p' "$root/tests/fuzz/CMakeLists.txt"; }

# Prints the comment block at the top of the calling script, which is its help text.
usage() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[1]}"; }

# Runs a command quietly: its output goes to a log, which is shown only if it fails.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    die "'$*' failed; all of its output is in $log"
  fi
}

# Reads lines 'PERCENT TEXT' and shows the progress: rewrites one line on a terminal, otherwise prints a line every 10 %.
show_progress() {
  local percent text next=0
  while read -r percent text; do
    if [[ -t 1 ]]; then
      printf '\r    %3d %%  %s\e[K' "$percent" "$text"
    elif ((percent >= next)); then
      note "$(printf '%3d %%  %s' "$percent" "$text")"
      next=$((percent / 10 * 10 + 10))
    fi
  done
  [[ ! -t 1 ]] || printf '\r\e[K'
}

# start_poold BUILD_FOLDER WORK_FOLDER [OPTIONS...]: starts poold on a free loopback port and sets poold_pid and
# poold_port. stop_poold ends it.
start_poold() {
  local build=$1 work=$2
  shift 2
  rm -f "$work/port"
  "$build/bin/poold" --listen tcp://127.0.0.1:0 --port-file "$work/port" "$@" >"$work/poold.log" 2>&1 &
  poold_pid=$!
  local tries
  for ((tries = 0; tries < 600; ++tries)); do
    if [[ -s $work/port ]]; then
      poold_port=$(<"$work/port")
      return
    fi
    kill -0 "$poold_pid" 2>/dev/null || break
    sleep 0.05
  done
  cat "$work/poold.log" >&2
  die "poold did not start"
}

stop_poold() {
  [[ -n ${poold_pid:-} ]] || return 0
  kill "$poold_pid" 2>/dev/null || true
  wait "$poold_pid" 2>/dev/null || true
  poold_pid=
}
