// One tenant: who may call itself so, and what it may use.
#pragma once
#include <sys/types.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "server/quota/quota.h"

namespace gpupool::server {

using TokenHash = std::array<unsigned char, 32>;  // SHA-256

constexpr const char* kDefaultTenant = "default";

struct Tenant {
  std::string name;
  quota::Quota quota;
  std::map<std::string, quota::GpuLimits> named_gpus;  // of the configuration, by UUID; Tenants puts them into the quota
  std::vector<TokenHash> tokens;          // any of them will do
  std::vector<TokenHash> retired_tokens;  // what they have begun goes on; they begin nothing more
  std::vector<std::string> certificates;  // names in client certificates, likewise
  std::vector<uid_t> users;               // of this host, over its Unix sockets, likewise
  bool leased = false;          // for as long as a lease of the pool: no client can ask for it
  std::vector<uint32_t> gpus;   // that its sessions see, in their order, as the host numbers them; empty: all
  bool has_credentials() const { return !tokens.empty() || !retired_tokens.empty() || !certificates.empty() || !users.empty(); }
  bool operator==(const Tenant&) const = default;
};

}  // namespace gpupool::server
