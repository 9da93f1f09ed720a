// Shortens gRPC messages about failed connections for users of pool-lease and poold. Values; any thread.
#pragma once
#include <string>

namespace gpupool::pool {

// Reason if a server that does not speak gRPC listens at the address, or one that requires TLS.
constexpr const char* kNoGrpc = "the server there does not speak gRPC, or requires TLS";

// Returns a short reason, for example "Connection refused", or an empty string if the message is not about a
// failed connection attempt.
inline std::string connect_failure(const std::string& message) {
  if (!message.starts_with("failed to connect to all addresses") &&
      !message.starts_with("DNS resolution failed"))
    return {};
  const size_t last = message.rfind(": ");
  const std::string reason = last == std::string::npos ? message : message.substr(last + 2);
  if (reason.starts_with("recvmsg:") || reason == "Socket closed" ||
      reason.starts_with("Trying to connect an http1"))
    return kNoGrpc;
  return (message.find("handshake failed") == std::string::npos ? "" : "TLS handshake failed, ") + reason;
}

}  // namespace gpupool::pool
