#include "server/sockets/networks.h"

#include <algorithm>
#include <asio/ip/address.hpp>

namespace gpupool::server {
namespace {

template <class Network>
bool holds(const Network& network, const decltype(network.address())& address) {
  return Network(address, network.prefix_length()).canonical() == network.canonical();
}

// Loopback and link-local addresses: services there, for instance clouds' metadata servers, may trust every
// client.
bool is_local(const asio::ip::address_v4& address) {
  return address.is_loopback() || (address.to_uint() >> 16) == 0xa9fe;
}  // 169.254.0.0/16
bool is_local(const asio::ip::address_v6& address) {
  return address.is_loopback() || address.is_link_local();
}

// A local address matches only networks of local addresses, not 0.0.0.0/0.
template <class Network, class Address>
bool any_holds(const std::vector<Network>& networks, const Address& address) {
  return std::any_of(networks.begin(), networks.end(), [&](const Network& network) {
    return holds(network, address) && (!is_local(address) || is_local(network.canonical().address()));
  });
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
      return Error{ErrorCode::invalid,
                   "'" + one + "' is not a network such as 10.1.0.0/16 or fd00::/8, nor 'any' or 'none'"};
    }
  }
  return parsed;
}

bool Networks::contains(const asio::ip::address& address) const {
  // Connecting to the unspecified address means loopback.
  if (address.is_unspecified() || address.is_multicast()) return false;
  if (address.is_v4()) return any_ ? !is_local(address.to_v4()) : any_holds(four_, address.to_v4());
  const auto six = address.to_v6();
  if (six.is_v4_mapped()) return contains(asio::ip::make_address_v4(asio::ip::v4_mapped, six));
  return any_ ? !is_local(six) : any_holds(six_, six);
}

}  // namespace gpupool::server
