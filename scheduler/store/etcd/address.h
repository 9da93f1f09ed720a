// Parser for store addresses: etcd://HOST:PORT[,HOST:PORT...][/PREFIX], or etcds:// with TLS. They name the
// members of one etcd cluster and the prefix of the pool's keys. Pure functions.
#pragma once
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool::scheduler::etcd {

struct Address {
  std::vector<std::string> endpoints;  // HOST:PORT, as gRPC takes them
  std::string prefix = "gpupool";      // without slashes around it
  bool tls = false;
};

bool is_address(const std::string& text);  // checks the scheme only
// Fails with ErrorCode::invalid only.
Result<Address> parse_address(const std::string& text);
// Returns the first member on another host that would be contacted without TLS; empty if there is none.
std::string plaintext_member(const Address& address);

}  // namespace gpupool::scheduler::etcd
