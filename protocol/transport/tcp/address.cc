#include "protocol/transport/tcp/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

namespace gpupool::transport::tcp {

std::string address_host(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
  } else if (address.ss_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text, sizeof text);
  }
  return text;
}

uint16_t address_port(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

std::string address_text(const sockaddr_storage& address) {
  const std::string host = address_host(address);
  return (address.ss_family == AF_INET6 ? "[" + host + "]" : host) + ":" +
         std::to_string(address_port(address));
}

bool is_same_host(int socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof here, there_size = sizeof there;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&here), &here_size) == 0 &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&there), &there_size) == 0 &&
         address_host(here) == address_host(there);
}

}  // namespace gpupool::transport::tcp
