// A list of IP networks that an operator configures, e.g. "10.1.0.0/16,fd00::/8,192.0.2.7", "any" or "none".
// Immutable; any thread.
#pragma once
#include <asio/ip/address.hpp>
#include <asio/ip/network_v4.hpp>
#include <asio/ip/network_v6.hpp>
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool::server {

class Networks {
 public:
  // ErrorCode::invalid: the message names the wrong entry.
  static Result<Networks> parse(const std::string& list);

  bool none() const { return !any_ && four_.empty() && six_.empty(); }
  // Loopback and link-local addresses match only networks of these kinds ("127.0.0.0/8"), never "any" or
  // 0.0.0.0/0.
  bool contains(const asio::ip::address& address) const;

 private:
  bool any_ = false;
  std::vector<asio::ip::network_v4> four_;
  std::vector<asio::ip::network_v6> six_;
};

}  // namespace gpupool::server
