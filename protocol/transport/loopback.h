// Decides whether an address can only mean this host, so that plaintext does not leave it. Used by poold, and
// by clients of a pool's scheduler. No state, any thread, cannot fail. Names are judged by their text alone:
// "127.evil.example" is an ordinary DNS name.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>

namespace gpupool::transport {

// True if `host` is a numeric loopback address, without brackets.
inline bool is_loopback(const std::string& host) {
  in_addr four{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  in6_addr six{};
  if (::inet_pton(AF_INET6, host.c_str(), &six) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

// `address` is HOST, HOST:PORT or [IPV6]:PORT. "localhost" counts as loopback (RFC 6761).
inline bool connects_to_loopback(const std::string& address) {
  const bool bracketed = address.starts_with('[');
  const bool bare_ipv6 = !bracketed && address.find(':') != address.rfind(':');
  const size_t end = bracketed ? address.find(']') : bare_ipv6 ? address.npos : address.find(':');
  if (bracketed && (end == address.npos || (end + 1 < address.size() && address[end + 1] != ':')))
    return false;
  const std::string host = bracketed ? address.substr(1, end - 1) : address.substr(0, end);
  return host == "localhost" || is_loopback(host);
}

}  // namespace gpupool::transport
