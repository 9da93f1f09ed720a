# The second part of the demo: two GPU hosts with four software GPUs each, one scheduler, three tenants, and programs that
# get their GPUs by lease. Sourced by scripts/demo.sh in the folder for logs and output; uses $build and common.sh.
# shellcheck shell=bash disable=SC2154  # variables of common.sh

declare -A programs=() # process ids by name
daemons=()             # process ids, the scheduler's first

cleanup_pool() {
  local i
  for i in "${programs[@]}"; do kill "$i" 2>/dev/null || true; done
  for i in "${programs[@]}"; do wait "$i" 2>/dev/null || true; done
  for ((i = ${#daemons[@]} - 1; i >= 0; --i)); do
    kill "${daemons[i]}" 2>/dev/null || true
    wait "${daemons[i]}" 2>/dev/null || true
  done
  programs=() daemons=()
}

# await WHAT COMMAND...: retries until the command succeeds, for 180 s at most.
await() {
  local what=$1 tries
  shift
  for ((tries = 0; tries < 1800; ++tries)); do
    if "$@"; then return; fi
    sleep 0.1
  done
  die "timed out after 180 s waiting until $what; logs are in $PWD"
}
# says TEXT COMMAND...: succeeds if the command prints TEXT.
says() { grep -qF -- "$1" <<<"$("${@:2}" 2>&1)"; }
shows() { "$@" | sed 's/^/    /'; }

# start_daemon NAME COMMAND...: starts a daemon with its output in NAME.log and its port in NAME.port.
start_daemon() {
  "${@:2}" --port-file "$1.port" >"$1.log" 2>&1 &
  daemons+=($!)
  await "$1 starts" test -s "$1.port"
}

# configure KIND NAME [QUOTA]: writes a new token to NAME.token and prints its entry of the scheduler's configuration.
configure() {
  local made
  made=$("$build/bin/pool-scheduler" --make-token)
  head -n 1 <<<"$made" >"$2.token"
  printf '[[%s]]\nname = "%s"\n%s\n' "$1" "$2" "$(tail -n 1 <<<"$made")"
  [[ -z ${3:-} ]] || echo "quota = { $3 }"
}

pool_admin() { COLUMNS=${COLUMNS:-120} "$build/bin/pool-admin" --scheduler "$scheduler" --token-file operator.token "$@"; }

# by_lease NAME TENANT OPTION... -- PROGRAM...: starts the program in the background with its output in NAME.log.
by_lease() {
  "$build/bin/pool-run" --server "pool://$scheduler" --token-file "$2.token" "${@:3}" >"$1.log" 2>&1 &
  programs[$1]=$!
}
# is_served NAME: succeeds once a poold has started a session of the program.
is_served() { grep -qs "session_started.* pid=${programs[$1]} " gpu-1.log gpu-2.log; }
await_served() {
  local name
  for name; do await "$name gets its GPUs" is_served "$name"; done
}
# await_line NAME PATTERN: waits until the output of the program or its client library matches.
await_line() {
  await "$1 prints '$2'" grep -qs -- "$2" "$1.log"
  note "$1: $(grep -- "$2" "$1.log" | tail -n 1)"
}
has_ended() { ! kill -0 "$1" 2>/dev/null; }
# passed NAME...: waits until the programs end, and fails unless all of them passed.
passed() {
  local name
  for name; do
    await "$name ends" has_ended "${programs[$name]}"
    if ! wait "${programs[$name]}" || ! grep -q '^PASSED' "$name.log"; then die "$name failed: $(<"$name.log")"; fi
    unset "programs[$name]"
    printf '    %-24s %s%s%s\n' "$name" "$green" "$(grep '^PASSED' "$name.log")" "$plain"
  done
}

start_pool() {
  umask 077
  {
    configure operator operator
    configure node gpu-1
    configure node gpu-2
    configure tenant production 'gpus = 8, weight = 2, highest_priority = "high"'
    configure tenant research 'gpus = 6, memory = "6GiB"'
    configure tenant students 'gpus = 1, highest_priority = "low"'
  } >pool.toml
  start_daemon scheduler "$build/bin/pool-scheduler" --config pool.toml --listen 127.0.0.1:0 --store sqlite:pool.db --key key.pem --audit-file audit.json
  scheduler=127.0.0.1:$(<scheduler.port)
  "$build/bin/pool-scheduler" --key key.pem --print-public-key >pool.pub
  local host
  for host in gpu-1 gpu-2; do
    SOFTGPU_DEVICES=4 SOFTGPU_MEMORY=1GiB SOFTGPU_INSTANCE=demo-$$-$host start_daemon "$host" "$build/bin/poold" --device softgpu --listen tcp://127.0.0.1:0 \
      --pool-name "$host" --pool-scheduler "$scheduler" --pool-token-file "$host.token" --pool-public-key pool.pub --peers 127.0.0.0/8
  done
  await "both hosts report to the scheduler" says 'nodes: 2, 2 open' pool_admin health
}

# Leases of all three tenants at the same time, one of them on both hosts. Requests without a place wait and show the reason.
share_pool() {
  local name
  say "leases of three tenants: whole GPUs, halves of a GPU, two requests that must wait and one that is refused"
  by_lease serving production --gpus 2 --one-host --priority high -- "$build/examples/keep_busy" --seconds 3600
  by_lease training research --compute 50 --memory 256MiB -- "$build/examples/keep_busy" --seconds 3600
  by_lease homework students --compute 50 --priority low -- "$build/examples/keep_busy" --seconds 3600
  by_lease thesis students --compute 50 --priority low -- "$build/examples/keep_busy" --seconds 3600
  await_served serving training homework thesis
  by_lease several_gpus production --gpus 6 -- "$build/examples/several_gpus"
  await_line several_gpus 'waiting for 6 GPUs.*reserved for it'
  by_lease more_homework students --compute 25 --priority low -- "$build/examples/vector_add"
  await_line more_homework 'waits for quota of tenant'
  if "$build/bin/pool-run" --server "pool://$scheduler" --token-file students.token --gpus 2 --priority low -- true >refused.log 2>&1; then
    die "students got more than their quota"
  fi
  note "$(<refused.log)"

  say "pool-admin top"
  pool_admin top --count 2 --interval 4 >top.log
  # shellcheck disable=SC2016  # $ is an address of sed
  sed -n '/^pool-scheduler/{h;d};H;${g;p}' top.log | sed 's/^/    /'  # the second table: the first one has no rates
  for name in keep_busy several_gpus production research students 'leases: 4' 'queue: 2'; do
    grep -qF "$name" top.log || die "pool-admin top does not show '$name'"
  done
  name=$(pool_admin queue --tenant students --json | grep -oE '"id":"[^"]+"' | cut -d '"' -f 4)
  say "pool-admin why $name"
  shows pool_admin why "$name"

  say "the four running programs end, and the waiting programs get their GPUs"
  kill "${programs[serving]}" "${programs[training]}" "${programs[homework]}" "${programs[thesis]}"
  passed serving training homework thesis more_homework several_gpus
  grep -q 'GPUs *6$' several_gpus.log || die "several_gpus did not have 6 GPUs: $(<several_gpus.log)"
  grep -q '"program":"several_gpus".*"nodes":"2"' audit.json || die "several_gpus was not placed on both hosts"
  note "several_gpus used 6 GPUs of both hosts, which exchanged data"
}

examples_by_lease() {
  local example name turn=0 names=()
  say "every example with a lease, in turn for each tenant"
  for example in "$build"/examples/*; do
    name=${example##*/}
    [[ -f $example && -x $example && $name != *-shared ]] || continue
    case $((turn++ % 3)) in
      0) by_lease "$name" production --priority high -- "$example" ;;
      1) by_lease "$name" research --compute 50 --memory 512MiB -- "$example" ;;
      2) by_lease "$name" students --compute 100 --priority low -- "$example" ;;
    esac
    names+=("$name")
  done
  passed "${names[@]}"
}

# While a host is drained, requests are placed on the other host or wait.
drain_host() {
  say "pool-admin drain gpu-2"
  shows pool_admin drain gpu-2 --reason "new fans"
  by_lease elsewhere research --gpus 2 -- "$build/examples/several_gpus"
  passed elsewhere
  grep '"lease_granted"' audit.json | tail -n 1 | grep -q '"node":"gpu-1","nodes":"1"' || die "a lease went to a drained host"
  by_lease patient research --gpus 5 -- "$build/examples/several_gpus"
  await_line patient 'waiting for 5 GPUs.*drained'
  shows pool_admin nodes
  note "$(pool_admin undrain gpu-2)"
  passed patient
}

node_of() { pool_admin leases --json | grep -oE '"node":"gpu-[12]"' | cut -d '"' -f 4; }
runs_on() { [[ $(node_of) == "$1" ]] && ! says moving pool_admin nodes; }

# A program goes on while its host is emptied, and while poold's program is replaced under it.
move_program() {
  local host other
  say "a program keeps counting while its host is emptied for maintenance"
  by_lease counting research --compute 50 --memory 256MiB -- env GPUPOOL_TRANSPORT=tcp "$build/examples/keep_busy" --seconds 3600 --every 1
  await_line counting 'kernels so far'
  host=$(node_of)
  other=gpu-$((3 - ${host#gpu-}))
  shows pool_admin drain "$host" --move --reason "new kernel"
  await "the lease is on $other" runs_on "$other"
  shows pool_admin leases
  says 'no sessions' "$build/bin/pool-admin" --poold "$(<"$host.port")" sessions || die "$host still has sessions"
  await_line counting 'kernels so far'
  say "pool-admin upgrade: poold's program on $other is replaced, and the program still counts"
  shows "$build/bin/pool-admin" --poold "$(<"$other.port")" upgrade
  shows "$build/bin/pool-admin" --poold "$(<"$other.port")" sessions
  note "$(pool_admin undrain "$host")"
  kill "${programs[counting]}"
  passed counting
  note "no kernel was lost or executed twice: $(grep '^kernels ' counting.log)"
}

all_is_given_back() {
  say "final state of the pool"
  await "all leases are released" says 'no leases' pool_admin leases
  says 'no waiting requests' pool_admin queue || die "requests are still waiting: $(pool_admin queue)"
  says 'GPUs: 0 of 8 leased' pool_admin health || die "GPUs are still leased: $(pool_admin health)"
  local granted gone
  granted=$(grep -c '"lease_granted"' audit.json)
  gone=$(grep -c '"lease_gone"' audit.json)
  ((granted == gone)) || die "$granted leases were granted, but $gone have ended"
  shows pool_admin tenants
  note "$granted leases were granted and released: 0 of 8 GPUs are leased"
}

show_pool() {
  start_pool
  say "a pool: pool-scheduler on $scheduler, two hosts with four GPUs each"
  shows pool_admin nodes
  share_pool
  examples_by_lease
  drain_host
  move_program
  all_is_given_back
  cleanup_pool
}
