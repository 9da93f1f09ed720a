// What poold is told of the pool that it belongs to: [pool] in its configuration, --pool-... on its command line.
#pragma once
#include <toml++/toml.h>

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/lease/key.h"
#include "protocol/wire/result.h"

namespace CLI {
class App;
}

namespace gpupool::server {

struct PoolOptions {
  std::vector<std::string> schedulers;   // HOST:PORT; empty: none is attended, leases are served all the same
  std::string token_file;                // by which the scheduler knows this node; none, and the scheduler must believe everybody
  std::string name;                      // of this node; empty only where there is no pool
  std::vector<std::string> addresses;    // for clients, best first; empty: where poold listens
  std::vector<std::string> public_keys;  // PEM files of those who sign leases
  std::string ca;                        // PEM file: who signs the schedulers' certificates; empty: the system's
  bool insecure = false;                 // plain gRPC, as to loopback in any case
  std::string rack;
  std::string zone;
  unsigned cpu_milli = 0;                // this and the next: for leases
  uint64_t host_memory_bytes = 0;
  bool configured() const { return !public_keys.empty() || !schedulers.empty(); }
};

// The options; apply() overwrites what the command line has said.
class PoolWords {
 public:
  explicit PoolWords(CLI::App& app);
  Result<void> apply(PoolOptions& options) const;

 private:
  const CLI::App& app_;
  PoolOptions given_;
  std::string host_memory_;
};

// ErrorCode::invalid: with the key.
Result<void> read_pool(const toml::node& node, PoolOptions& options);
// Gives the node this host's name where it has none. ErrorCode::invalid: what is missing or wrong, in full.
Result<void> check_pool(PoolOptions& options);
Result<std::vector<lease::PublicKey>> read_public_keys(const std::vector<std::string>& files);

}  // namespace gpupool::server
