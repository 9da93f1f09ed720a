// Addresses of Unix sockets: a path, or an abstract name written with '@' in front.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>

#include "protocol/transport/transport.h"

namespace gpupool::transport::shm {

struct Address {
  sockaddr_un bytes{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

Result<Address> make_address(const Endpoint& endpoint);
// The other end of a connected socket: its address, or its process where it has none.
std::string peer_text(int descriptor, const Address& address);

// Where the poold that listens on this numeric tcp address can be found by shared memory too. The address is in the name,
// since several poolds may have the same port on different addresses of a host.
Endpoint beside_tcp(const std::string& numeric_host, uint16_t port);

}  // namespace gpupool::transport::shm
