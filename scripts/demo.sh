#!/usr/bin/env bash
# Usage: scripts/demo.sh [--no-install]
# Shows gpupool at work on this machine, with no GPU: installs what is missing, builds the release preset, starts
# poold on softgpu (a CUDA device on the CPU), runs every CUDA example through the client library, and shows that
# the program itself holds no device. --no-install leaves the machine's packages alone.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

install=yes
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --no-install) install=no ;;
    *) die "unknown option '$1'; try --help" ;;
  esac
  shift
done

build=$root/build/release
output=$root/build/demo
[[ $install == no ]] || "$root/scripts/install-dependencies.sh"
"$root/scripts/build.sh" release --no-tests
[[ -x $build/examples/vector_add ]] || die "the examples were not built: is there an nvcc? See $build/configure.log"
rm -rf "$output"
mkdir -p "$output"
cd "$output"

app_pid='' poold_pid=''
cleanup() {
  if [[ -n $app_pid ]]; then kill -CONT "$app_pid" && kill "$app_pid"; fi 2>/dev/null || true
  stop_poold
}
trap cleanup EXIT

start_poold "$build" "$output" --device softgpu
server=tcp://127.0.0.1:$poold_port
say "poold (pid $poold_pid) serves softgpu on $server"

say "every example, unmodified, through pool-run --server $server"
failed=0
examples=0
for example in "$build"/examples/*; do
  [[ -f $example && -x $example ]] || continue
  name=${example##*/}
  examples=$((examples + 1))
  if "$build/bin/pool-run" --server "$server" -- "$example" >"$name.log" 2>&1; then
    printf '    %-24s %s%s%s\n' "$name" "$green" "$(tail -n 1 "$name.log")" "$plain"
  else
    failed=$((failed + 1))
    printf '    %-24s %sFAILED%s\n' "$name" "$red" "$plain"
    sed 's/^/        /' "$name.log"
  fi
done

# Which of these processes holds the device? Stop a program halfway and look at it.
device_libraries='softgpu|libLLVM|libnvidia'
mapped_libraries() { grep -oE '/[^ ]+\.so[.0-9]*$' "/proc/$1/maps" | sort -u; }
poold_address=$(printf '0100007F:%04X' "$poold_port")
# connections LOCAL REMOTE PIDS...: who of PIDS has a socket from LOCAL to REMOTE ('' is any), as "pid local-address".
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

say "who holds the device while fractal runs?"
GPUPOOL=$server GPUPOOL_SHM=0 LD_LIBRARY_PATH=$build/lib/client "$build/examples/fractal" --width 1600 --height 1200 \
  --output "$output/fractal-large.ppm" >fractal-large.log 2>&1 &
app_pid=$!
while kill -0 "$app_pid" 2>/dev/null && [[ -z $(connections '' "$poold_address" "$app_pid") ]]; do sleep 0.02; done
kill -STOP "$app_pid" 2>/dev/null || die "the program ended before it could be looked at: $(<fractal-large.log)"

libraries=$(mapped_libraries "$app_pid")
note "program $app_pid: CUDA driver library $(grep libcuda.so <<<"$libraries")"
read -r _ app_address < <(connections '' "$poold_address" "$app_pid")
note "program $app_pid: a connection from port $((16#${app_address#*:})) to poold's port $poold_port"
if grep -qE "$device_libraries" <<<"$libraries" || ! grep -q "$build/lib/client/libcuda.so" <<<"$libraries"; then
  note "${red}the program itself has loaded a device:$plain" "$(grep -E "$device_libraries" <<<"$libraries")"
  failed=$((failed + 1))
else
  note "program $app_pid: no softgpu, no LLVM, no NVIDIA driver in it"
fi
# shellcheck disable=SC2046  # one word per process
read -r worker _ < <(connections "$poold_address" "$app_address" $(cat "/proc/$poold_pid"/task/*/children)) || true
library=''
[[ -z ${worker:-} ]] || library=$(mapped_libraries "$worker" | sed -n '/softgpu/p')
if [[ -n $library ]]; then
  note "worker  $worker: has the other end of it, and the device: ${library%%$'\n'*}"
else
  note "${red}no worker process of poold has both that connection and the device$plain"
  failed=$((failed + 1))
fi
kill -CONT "$app_pid"
if wait "$app_pid"; then
  note "program $app_pid went on: $(tail -n 1 fractal-large.log)"
else
  failed=$((failed + 1))
  note "${red}program $app_pid failed:$plain $(<fractal-large.log)"
fi
app_pid=''

stop_poold
note "pictures and logs are in build/demo"
if ((failed)); then die "$failed of $((examples + 1)) parts of the demo failed"; fi
say "${green}all $examples programs ran on a device in another process$plain"
