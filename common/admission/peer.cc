#include "common/admission/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

namespace gpupool {
namespace {

std::string host_of(const std::string& address) {
  const size_t end = address.rfind(']');
  if (address.starts_with('[') && end != std::string::npos) return address.substr(1, end - 1);
  const size_t colon = address.rfind(':');
  return colon == address.find(':') ? address.substr(0, colon)
                                    : address;  // several colons: IPv6 without a port
}

std::string text_of(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(family, address, text, sizeof text);
  return text;
}

}  // namespace

std::string peer_of(const std::string& address) {
  const std::string host = host_of(address);
  in6_addr six{};
  if (::inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &six) != 1) return host;
  if (IN6_IS_ADDR_V4MAPPED(&six)) return text_of(AF_INET, six.s6_addr + 12);
  std::fill_n(six.s6_addr + 8, 8, uint8_t{0});
  return text_of(AF_INET6, &six) + "/64";
}

std::string peer_of(const std::string& address, int socket) {
  const auto user = user_of(socket);
  return user ? "user " + std::to_string(*user) : peer_of(address);
}

std::optional<uid_t> user_of(int socket) {
  int family = 0;
  ucred peer{};
  socklen_t family_size = sizeof family, size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &family_size) != 0 || family != AF_UNIX)
    return std::nullopt;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer.uid;
}

}  // namespace gpupool
