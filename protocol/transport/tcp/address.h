// Socket addresses as text: "127.0.0.1:4321", "[::1]:4321". No state, any thread.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace gpupool::transport::tcp {

std::string address_host(const sockaddr_storage& address);  // without brackets
uint16_t address_port(const sockaddr_storage& address);
std::string address_text(const sockaddr_storage& address);
// True if both ends of a connected socket have the same address, so are on this host.
bool is_same_host(int socket);

}  // namespace gpupool::transport::tcp
