// Parses pool:// addresses: pool://HOST[:PORT][,HOST[:PORT]...][?KEY=VALUE&...], the schedulers of a pool and
// the resources to request. Used by pool-lease and pool-admin. Stateless, any thread.
//
// Keys: gpus=N, compute=PERCENT (of each GPU, fractions allowed), memory=SIZE (of each GPU), model=NAME
// (repeatable), one-host=1, cpus=N, host-memory=SIZE, mode=elastic|hard, priority=low|normal|high,
// near=LABEL, apart=LABEL, label=LABEL (these three repeatable), tenant=NAME, insecure=1. Values may be
// percent-encoded.
#pragma once
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/control/pool.pb.h"

namespace gpupool::pool {

constexpr uint16_t kDefaultPort = 9800;  // port of pool-scheduler

struct Scheduler {
  std::string host;
  uint16_t port = kDefaultPort;
  std::string text() const;  // HOST:PORT, as gRPC takes it
};

struct PoolAddress {
  std::vector<Scheduler> schedulers;  // all of one pool
  pool::Request request;
  bool insecure = false;  // allow connections without TLS to other hosts
};

// ErrorCode::invalid: the message says what is wrong with the address.
Result<PoolAddress> parse_pool_address(const std::string& text);

}  // namespace gpupool::pool
