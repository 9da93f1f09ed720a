#include "server/networks.h"

#include <algorithm>
#include <asio/ip/address.hpp>

namespace gpupool::server {
namespace {

template <class Network>
bool holds(const Network& network, const decltype(network.address())& address) {
  return Network(address, network.prefix_length()).canonical() == network.canonical();
}

}  // namespace

Result<Networks> Networks::parse(const std::string& list) {
  Networks parsed;
  parsed.any_ = list == "any";
  if (parsed.any_ || list == "none") return parsed;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string one = list.substr(at, end - at);
    const bool prefixed = one.find('/') != std::string::npos;
    at = end + 1;
    asio::error_code bad;
    if (const auto four = asio::ip::make_network_v4(prefixed ? one : one + "/32", bad); !bad) {
      parsed.four_.push_back(four);
    } else if (const auto six = asio::ip::make_network_v6(prefixed ? one : one + "/128", bad); !bad) {
      parsed.six_.push_back(six);
    } else {
      return Error{ErrorCode::invalid, "'" + one + "' is no network such as 10.1.0.0/16 or fd00::/8, nor any, nor none"};
    }
  }
  return parsed;
}

bool Networks::contains(const std::string& host) const {
  if (any_) return true;
  asio::error_code bad;
  const auto address = asio::ip::make_address(host, bad);
  if (bad) return false;
  if (address.is_v4()) {
    return std::any_of(four_.begin(), four_.end(), [&](const auto& network) { return holds(network, address.to_v4()); });
  }
  const auto six = address.to_v6();
  if (six.is_v4_mapped()) return contains(asio::ip::make_address_v4(asio::ip::v4_mapped, six).to_string());
  return std::any_of(six_.begin(), six_.end(), [&](const auto& network) { return holds(network, six); });
}

}  // namespace gpupool::server
