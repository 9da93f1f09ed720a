// The address of a TCP server on the loopback interface.
#pragma once
#include <netinet/in.h>

#include <cstdint>

namespace gpupool::testing {

// Returns 127.0.0.1 with this port; bind() chooses a free one for port 0.
inline sockaddr_in loopback_address(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace gpupool::testing
