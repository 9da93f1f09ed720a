// gRPC's message for a connection that was not made, shortened for users. Values; any thread.
#pragma once
#include <string>

namespace gpupool::pool {

// "Connection refused"; empty: the connection was made, the message is the server's own or another one.
inline std::string connect_failure(const std::string& message) {
  if (!message.starts_with("failed to connect to all addresses") && !message.starts_with("DNS resolution failed")) return {};
  const size_t last = message.rfind(": ");
  const std::string reason = last == std::string::npos ? message : message.substr(last + 2);
  return (message.find("handshake failed") == std::string::npos ? "" : "TLS handshake failed, ") + reason;
}

}  // namespace gpupool::pool
