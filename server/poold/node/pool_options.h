// Settings of poold's membership in a pool: [pool] in its configuration, --pool-... on its command line.
#pragma once
#include <toml++/toml.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/lease/key.h"

namespace CLI {
class App;
}

namespace gpupool::server {

struct PoolOptions {
  std::vector<std::string> schedulers;  // HOST:PORT; empty: no scheduler, but leases are served
  // Authenticates this node to the scheduler; empty: the scheduler must trust all nodes.
  std::string token_file;
  std::string name;                      // this node's name; empty only without a pool
  std::vector<std::string> addresses;    // for clients, best first; empty: poold's listening addresses
  std::vector<std::string> public_keys;  // PEM files of the keys that verify leases
  std::string ca;         // PEM file with authorities of the schedulers' certificates; empty: the system's
  bool insecure = false;  // gRPC without TLS; also used to loopback addresses
  std::string rack;
  std::string zone;
  unsigned cpu_milli = 0;          // thousandths of CPUs offered to leases
  uint64_t host_memory_bytes = 0;  // bytes offered to leases
  bool configured() const { return !public_keys.empty() || !schedulers.empty(); }
};

// Command-line options of the pool. apply() overwrites the values that the command line sets.
class PoolCommandLine {
 public:
  explicit PoolCommandLine(CLI::App& app);
  Result<void> apply(PoolOptions& options) const;

 private:
  const CLI::App& app_;
  PoolOptions values_;
  std::string host_memory_;
};

// ErrorCode::invalid: the message begins with the key.
Result<void> read_pool(const toml::node& node, PoolOptions& options);
// Sets a missing node name to the host's name, and checks the options. ErrorCode::invalid: the message is
// complete.
Result<void> check_pool(PoolOptions& options);
Result<std::vector<lease::PublicKey>> read_public_keys(const std::vector<std::string>& files);

}  // namespace gpupool::server
