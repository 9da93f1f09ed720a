// Socket addresses as text: "127.0.0.1:4321", "[::1]:4321".
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace gpupool::transport::tcp {

std::string address_host(const sockaddr_storage& address);  // without brackets
uint16_t address_port(const sockaddr_storage& address);
std::string address_text(const sockaddr_storage& address);
// Are both ends of a connected socket on this machine?
bool is_same_host(int socket);

}  // namespace gpupool::transport::tcp
