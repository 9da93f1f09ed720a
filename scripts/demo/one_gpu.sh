# The first part of the demo: one poold on softgpu, and every example through it. Sourced by scripts/demo.sh in the folder
# for logs and output; uses $build and common.sh.
# shellcheck shell=bash disable=SC2154  # variables of common.sh

app_pid='' poold_pid=''
failed=0

cleanup_one_gpu() {
  if [[ -n $app_pid ]]; then kill -CONT "$app_pid" && kill "$app_pid"; fi 2>/dev/null || true
  stop_poold
}

run_examples() {
  local example name
  say "every example, unmodified, through pool-run --server $server"
  for example in "$build"/examples/*; do
    [[ -f $example && -x $example ]] || continue
    name=${example##*/}
    if "$build/bin/pool-run" --server "$server" -- "$example" >"$name.log" 2>&1; then
      printf '    %-24s %s%s%s\n' "$name" "$green" "$(tail -n 1 "$name.log")" "$plain"
    else
      failed=$((failed + 1))
      printf '    %-24s %sFAILED%s\n' "$name" "$red" "$plain"
      sed 's/^/        /' "$name.log"
    fi
  done
}

# Finds out which process has loaded the device: a program is stopped while it runs, and its libraries are inspected.
device_libraries='softgpu|libLLVM|libnvidia'
mapped_libraries() { grep -oE '/[^ ]+\.so[.0-9]*$' "/proc/$1/maps" | sort -u; }
# connections LOCAL REMOTE PIDS...: prints "pid local-address" for each of PIDS that has a socket from LOCAL to REMOTE ('':
# any address). Read all lines: a reader that stops after the first one makes it fail with a broken pipe.
connections() {
  local local_address=$1 remote=$2 pid address inode
  shift 2
  while read -r address inode; do
    for pid; do
      if [[ -n $(find "/proc/$pid/fd" -lname "socket:\[$inode\]" 2>/dev/null) ]]; then echo "$pid $address"; fi
    done
  done < <(awk -v from="$local_address" -v to="$remote" \
    '(!from || $2 == from) && (!to || $3 == to) { print $2, $10 }' /proc/net/tcp)
}

who_holds_the_device() {
  local libraries found app_address worker library
  say "which process has loaded the device while fractal runs?"
  GPUPOOL=$server GPUPOOL_SHM=0 LD_LIBRARY_PATH=$build/lib/client "$build/examples/fractal" --width 1600 --height 1200 \
    --output "$PWD/fractal-large.ppm" >fractal-large.log 2>&1 &
  app_pid=$!
  while kill -0 "$app_pid" 2>/dev/null && [[ -z $(connections '' "$poold_address" "$app_pid") ]]; do sleep 0.02; done
  kill -STOP "$app_pid" 2>/dev/null || die "the program ended before it could be inspected: $(<fractal-large.log)"

  libraries=$(mapped_libraries "$app_pid")
  note "program $app_pid: CUDA driver library $(grep libcuda.so <<<"$libraries")"
  found=$(connections '' "$poold_address" "$app_pid")
  [[ -n $found ]] || die "the program has no connection to poold: $(<fractal-large.log)"
  read -r _ app_address <<<"$found"
  note "program $app_pid: connected from port $((16#${app_address#*:})) to poold's port $poold_port"
  if grep -qE "$device_libraries" <<<"$libraries" || ! grep -q "$build/lib/client/libcuda.so" <<<"$libraries"; then
    note "${red}the program itself has loaded a device:$plain" "$(grep -E "$device_libraries" <<<"$libraries")"
    failed=$((failed + 1))
  else
    note "program $app_pid: has loaded neither softgpu nor LLVM nor an NVIDIA driver"
  fi
  # shellcheck disable=SC2046  # one word for each process
  found=$(connections "$poold_address" "$app_address" $(cat "/proc/$poold_pid"/task/*/children))
  read -r worker _ <<<"$found"
  library=''
  [[ -z $worker ]] || library=$(mapped_libraries "$worker" | sed -n '/softgpu/p')
  if [[ -n $library ]]; then
    note "worker  $worker: has the other end of this connection and has loaded the device: ${library%%$'\n'*}"
  else
    note "${red}no worker process of poold has both this connection and the device$plain"
    failed=$((failed + 1))
  fi
  kill -CONT "$app_pid"
  if wait "$app_pid"; then
    note "program $app_pid continued: $(tail -n 1 fractal-large.log)"
  else
    failed=$((failed + 1))
    note "${red}program $app_pid failed:$plain $(<fractal-large.log)"
  fi
  app_pid=''
}

show_one_gpu() {
  # who_holds_the_device inspects a worker; the sandbox hides its memory and descriptors from all users but root.
  local look=()
  ((EUID == 0)) || look=(--no-sandbox)
  start_poold "$build" "$PWD" --device softgpu "${look[@]}"
  server=tcp://127.0.0.1:$poold_port
  say "poold (pid $poold_pid) serves softgpu on $server"
  run_examples
  poold_address=$(printf '0100007F:%04X' "$poold_port")
  who_holds_the_device
  stop_poold
  if ((failed)); then die "$failed checks failed"; fi
}
