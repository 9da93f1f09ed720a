// pool://HOST[:PORT][,HOST[:PORT]...][?KEY=VALUE&...]: schedulers and what is asked of them.
//
// gpus=N, compute=PERCENT (of each, fractions allowed), memory=SIZE (of each), model=NAME (may come several times), one-host=1,
// cpus=N, host-memory=SIZE, mode=elastic|hard, priority=low|normal|high, near=LABEL, apart=LABEL, label=LABEL (these three may come
// several times), tenant=NAME, insecure=1. Values may be %-encoded.
#pragma once
#include <string>
#include <vector>

#include "protocol/control/pool.pb.h"
#include "protocol/wire/result.h"

namespace gpupool::holder {

constexpr uint16_t kDefaultPort = 9800;  // pool-scheduler's

struct Scheduler {
  std::string host;
  uint16_t port = kDefaultPort;
  std::string text() const;  // as gRPC takes it, HOST:PORT
};

struct PoolAddress {
  std::vector<Scheduler> schedulers;  // of one pool
  pool::Request request;
  bool insecure = false;  // without TLS beyond this host
};

// ErrorCode::invalid: what is wrong with it.
Result<PoolAddress> parse_pool_address(const std::string& text);

}  // namespace gpupool::holder
