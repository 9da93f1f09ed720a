// The peer that a connection's load is charged to before it is authenticated. Any thread; never fails.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>

namespace gpupool::server {

// "10.0.0.1", or for IPv6 its /64, which usually belongs to one site: "2001:db8:0:1::/64". `address` may have a port: "10.0.0.1:4321",
// "[2001:db8:0:1::5]:4321". Text that is no numeric address is its own peer.
std::string peer_of(const std::string& address);
// "user 1000" if `socket` is a connected Unix socket, else as above.
std::string peer_of(const std::string& address, int socket);
// User of the process at the other end of a Unix socket, as it was when it connected. nullopt: another kind of socket.
std::optional<uid_t> user_of(int socket);

}  // namespace gpupool::server
