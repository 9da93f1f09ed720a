// The peer that a connection's load is charged to before it is authenticated. Any thread; never fails.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>

namespace gpupool {

// Returns "10.0.0.1", or for IPv6 its /64, which usually belongs to one site: "2001:db8:0:1::/64". `address`
// may have a port: "10.0.0.1:4321", "[2001:db8:0:1::5]:4321". Text that is not a numeric address is returned
// without its port.
std::string peer_of(const std::string& address);
// Returns "user 1000" if `socket` is a connected Unix socket, else peer_of(address).
std::string peer_of(const std::string& address, int socket);
// Returns the user of the process at the other end of a Unix socket, as of its connect(). nullopt: not a Unix
// socket.
std::optional<uid_t> user_of(int socket);

}  // namespace gpupool
