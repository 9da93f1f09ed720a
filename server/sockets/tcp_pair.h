// Two connected TCP sockets of this process, for connections between two of its workers, whose code expects
// TCP. Any thread.
#pragma once
#include <array>
#include <optional>

namespace gpupool::server {

// The caller owns the descriptors, which do not block. nullopt: there are no descriptors, ports or loopback
// interface. No other process can be at either end.
std::optional<std::array<int, 2>> make_tcp_pair();

}  // namespace gpupool::server
