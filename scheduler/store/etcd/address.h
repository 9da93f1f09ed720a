// etcd://HOST:PORT[,HOST:PORT...][/PREFIX], or etcds:// with TLS: the members of one etcd cluster, and under which keys the pool is.
#pragma once
#include <string>
#include <vector>

#include "protocol/wire/result.h"

namespace gpupool::scheduler::etcd {

struct Address {
  std::vector<std::string> endpoints;  // HOST:PORT, as gRPC takes them
  std::string prefix = "gpupool";      // without slashes around it
  bool tls = false;
};

bool is_address(const std::string& text);  // by how it begins
// ErrorCode::invalid: what is wrong with it.
Result<Address> parse_address(const std::string& text);
// The first member to which etcd:// would speak in plaintext beyond this host; empty: there is none.
std::string plaintext_member(const Address& address);

}  // namespace gpupool::scheduler::etcd
