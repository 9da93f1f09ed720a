// IP networks that an operator lists, e.g. "10.1.0.0/16,fd00::/8,192.0.2.7", or "any", or "none".
#pragma once
#include <asio/ip/network_v4.hpp>
#include <asio/ip/network_v6.hpp>
#include <string>
#include <vector>

#include "protocol/wire/result.h"

namespace gpupool::server {

class Networks {
 public:
  // ErrorCode::invalid with what is wrong.
  static Result<Networks> parse(const std::string& list);

  bool none() const { return !any_ && four_.empty() && six_.empty(); }
  // `host` as a number: names are in no network, since they may mean something else a moment later. With "any" all are.
  bool contains(const std::string& host) const;

 private:
  bool any_ = false;
  std::vector<asio::ip::network_v4> four_;
  std::vector<asio::ip::network_v6> six_;
};

}  // namespace gpupool::server
