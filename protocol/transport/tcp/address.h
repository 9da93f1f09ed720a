// Socket addresses as text: "127.0.0.1:4321", "[::1]:4321".
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace gpupool::transport::tcp {

std::string address_host(const sockaddr_storage& address);  // without brackets
uint16_t address_port(const sockaddr_storage& address);
std::string address_text(const sockaddr_storage& address);

}  // namespace gpupool::transport::tcp
