// A minimal blocking HTTP client for servers on 127.0.0.1.
#pragma once
#include <cstdint>
#include <string>

namespace gpupool::testing {

// Sends the request and returns everything received until the connection ends. Throws if the port refuses the
// connection.
std::string http_exchange(uint16_t port, const std::string& request);
std::string http_get(uint16_t port, const std::string& path);

// Returns the metrics port that a poold started with --metrics 127.0.0.1:0 has logged last.
uint16_t metrics_port(const std::string& log);

}  // namespace gpupool::testing
