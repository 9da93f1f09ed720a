// The numeric address under which this program has reached a server, for other servers: they resolve no names. Any thread.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace gpupool::client {

// IPv6, or IPv4 as ::ffff:a.b.c.d. `peer` is Connection::peer(), such as "10.1.0.5:9700" or "[fd00::5]:9700"; where it is none of these (shared
// memory), `host` counts if it is a number. Nothing: neither is.
std::optional<std::array<uint8_t, 16>> numeric_address(const std::string& peer, const std::string& host);

}  // namespace gpupool::client
