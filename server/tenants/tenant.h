// A tenant: its credentials and its quota. Plain values; any thread.
#pragma once
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "common/token/token.h"
#include "server/quota/quota.h"

namespace gpupool::server {

struct Tenant {
  std::string name;
  quota::Quota quota;
  // From the configuration, by UUID; Tenants moves them into `quota`.
  std::map<std::string, quota::GpuLimits> named_gpus;
  std::vector<TokenHash> tokens;          // any of them authenticates
  std::vector<TokenHash> retired_tokens;  // keep existing sessions, start no new ones
  std::vector<std::string> certificates;  // names in client certificates; any of them authenticates
  std::vector<uid_t> users;         // user IDs of this host, on its Unix sockets; any of them authenticates
  bool leased = false;              // exists for a lease of the pool; clients cannot name it
  std::vector<std::string> labels;  // of the lease, for metrics
  std::vector<uint32_t> gpus;       // that its sessions see, in this order, by the host's numbers; empty: all
  bool has_credentials() const {
    return !tokens.empty() || !retired_tokens.empty() || !certificates.empty() || !users.empty();
  }
  bool operator==(const Tenant&) const = default;
};

}  // namespace gpupool::server
