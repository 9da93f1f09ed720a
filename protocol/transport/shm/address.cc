#include "protocol/transport/shm/address.h"

#include <cstddef>
#include <cstring>

namespace gpupool::transport::shm {

Result<Address> make_address(const Endpoint& endpoint) {
  Address address;
  address.bytes.sun_family = AF_UNIX;
  const std::string& name = endpoint.host;
  constexpr size_t kMost = sizeof address.bytes.sun_path - 1;
  if (name.size() > kMost) {
    return Error{ErrorCode::invalid, "the address " + endpoint.text() + " is too long: Unix sockets allow " +
                                         std::to_string(kMost) + " bytes, it has " +
                                         std::to_string(name.size())};
  }
  std::memcpy(address.bytes.sun_path, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (name.starts_with('@'))
    address.bytes.sun_path[0] = '\0';
  else
    ++address.size;  // the NUL behind a path
  return address;
}

std::string peer_text(int descriptor, const Address& address) {
  const size_t length = address.size - std::min<size_t>(address.size, offsetof(sockaddr_un, sun_path));
  if (length > 1) {
    std::string name(address.bytes.sun_path, length);
    if (name.front() == '\0')
      name.front() = '@';
    else
      name.resize(std::strlen(name.c_str()));
    return Endpoint{"shm", name, 0}.text();
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "shm:process";
  return "shm:process-" + std::to_string(peer.pid) + "-of-user-" + std::to_string(peer.uid);
}

Endpoint shm_endpoint_of_tcp(const std::string& numeric_host, uint16_t port) {
  return {"shm", "@gpupool/tcp/" + numeric_host + "/" + std::to_string(port), 0};
}

}  // namespace gpupool::transport::shm
