// The payload of poold's answer peer_found to a worker that has asked for a connection to another server: the
// key of the TLS stream that follows (peers::channel_key), nothing if the data is not encrypted, or this text
// if the connection's other end is another worker of the same poold.
#pragma once
#include <string_view>

namespace gpupool::server {

constexpr std::string_view kWithinHost = "within the host";

}  // namespace gpupool::server
