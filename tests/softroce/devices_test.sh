#!/usr/bin/env bash
# Tests that the guest has both devices and that messages between them use the cable.
set -euo pipefail
fail() { echo "FAILED: $*" && exit 1; }

read -ra devices <<<"$GPUPOOL_TEST_RDMA_DEVICES"
read -ra addresses <<<"$GPUPOOL_TEST_RDMA_ADDRESSES"
((${#devices[@]} == 2 && ${#addresses[@]} == 2)) || fail "there must be two devices"
for device in "${devices[@]}"; do
  [[ $(<"/sys/class/infiniband/$device/ports/1/state") == *ACTIVE ]] || fail "$device is not active"
done
[[ $(ulimit -l) == unlimited ]] || fail "locked memory is limited"

sent_over_cable() { cat /sys/class/net/veth1/statistics/tx_packets; }
before=$(sent_over_cable)
ib_send_lat -d "${devices[0]}" -x 1 -n 200 -p 18600 >/tmp/server.log 2>&1 &
server=$!
for ((tries = 0; tries < 1000; ++tries)); do
  [[ $(ss -Hltn sport = :18600) ]] && break
  kill -0 $server || fail "the server did not start: $(</tmp/server.log)"
  sleep 0.02
done
ib_send_lat -d "${devices[1]}" -x 1 -n 200 -p 18600 "${addresses[0]}" || fail "the client failed with status $?"
wait $server || fail "the server failed: $(</tmp/server.log)"
(($(sent_over_cable) - before >= 200)) || fail "the messages did not go over the cable"
