# Runs in the guest as root, in the host's root file system: sets up the devices, runs the command and reports its exit
# status.
# shellcheck shell=bash disable=SC2154  # the variables come from settings
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# shellcheck source=/dev/null
source /run/softroce/settings # mtu, writable, folder, command
hostname softroce

for i in "${!writable[@]}"; do
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap "writable$i" "${writable[i]}" || exit
done

# Two devices on the ends of one cable, in the initial network namespace, the only one where rxe of Linux 6.1 works. The
# rules route packets between the two addresses over the cable, for which the kernel would otherwise use lo. A client that
# binds to no address gets the address of the end opposite to the one that it connects to.
a=10.77.0.1 b=10.77.0.2
ip -batch - <<EOF || exit
link set lo up
link add veth0 mtu $mtu type veth peer name veth1 mtu $mtu
addr add $a/24 dev veth0
addr add $b/24 dev veth1
link set veth0 up
link set veth1 up
rule add pref 1 iif veth0 lookup local
rule add pref 1 iif veth1 lookup local
rule add pref 2 from $a to $a lookup local
rule add pref 2 from $b to $b lookup local
rule add pref 3 to $b lookup 101
rule add pref 3 to $a lookup 102
route add $b dev veth0 src $a table 101
route add $a dev veth1 src $b table 102
rule add pref 10 lookup local
rule del pref 0
EOF
for i in all veth0 veth1; do
  echo 1 >/proc/sys/net/ipv4/conf/$i/accept_local
  echo 0 >/proc/sys/net/ipv4/conf/$i/rp_filter
done
gid_is_there() {
  local tries gid
  for ((tries = 0; tries < 500; ++tries)); do  # a work queue fills the GID table
    read -r gid <"/sys/class/infiniband/$1/ports/1/gids/1"
    [[ $gid != *:ffff:0a4d:* ]] || return 0
    sleep 0.02
  done
  return 1
}
for i in 0 1; do
  if ! rdma link add rxe$i type rxe netdev veth$i || ! gid_is_there rxe$i; then echo "softroce: no rxe$i" && exit; fi
done
ulimit -l unlimited

# The host reads these ports as stdout, stderr and status. A port can be open only once at a time, so the command writes
# to pipes.
for port in /sys/class/virtio-ports/*; do declare "port_$(<"$port/name")=/dev/${port##*/}"; done
exec 3>"$port_stdout" 4>"$port_stderr"
mkfifo /run/softroce/stdout /run/softroce/stderr
cat /run/softroce/stdout >&3 &
cats=($!)
cat /run/softroce/stderr >&4 &
cats+=($!)
(
  exec >/run/softroce/stdout 2>/run/softroce/stderr 3>&- 4>&-
  # shellcheck source=/dev/null
  source /run/softroce/environment
  export GPUPOOL_SOFTROCE=1 GPUPOOL_TEST_RDMA_DEVICES='rxe0 rxe1' GPUPOOL_TEST_RDMA_ADDRESSES="$a $b"
  cd "$folder" && exec "${command[@]}"
)
status=$?
# Background processes of the command may hold the pipes open; they end with the guest.
(sleep 2 && kill "${cats[@]}") >/dev/null 2>&1 3>&- 4>&- &
wait "${cats[@]}"
echo $status >"$port_status"
