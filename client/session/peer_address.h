// The numeric address under which this process has reached a server. Passed to other servers, which resolve
// no names. Stateless; any thread.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace gpupool::client {

// Returns an IPv6 address, or IPv4 as ::ffff:a.b.c.d. `peer` is Connection::peer(), such as "10.1.0.5:9700"
// or "[fd00::5]:9700". If it is not numeric (shared memory), uses `host` if that is. nullopt: neither is.
std::optional<std::array<uint8_t, 16>> numeric_address(const std::string& peer, const std::string& host);

}  // namespace gpupool::client
