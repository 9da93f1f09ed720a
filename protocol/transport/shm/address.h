// Addresses of Unix sockets: a path, or an abstract name written with a leading '@'. No state, any thread.
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

// ErrorCode::invalid: the name is too long for a sockaddr_un.
Result<Address> make_address(const Endpoint& endpoint);
// Names the peer of a connected socket: its address, or else its process and user.
std::string peer_text(int descriptor, const Address& address);

// The abstract name under which the poold that listens on this numeric tcp address also offers shared memory.
// It has the address because several poolds may use the same port on different addresses of a host.
Endpoint shm_endpoint_of_tcp(const std::string& numeric_host, uint16_t port);

}  // namespace gpupool::transport::shm
