// gRPC's message for a connection that was not made, shortened for users. Values; any thread.
#pragma once
#include <string>

namespace gpupool::pool {

// Something listens at the address but is no gRPC server, or has TLS while this side has none.
constexpr const char* kNoGrpc = "what listens there speaks no gRPC, or only with TLS";

// "Connection refused"; empty: the connection was made, the message is the server's own or another one.
inline std::string connect_failure(const std::string& message) {
  if (!message.starts_with("failed to connect to all addresses") && !message.starts_with("DNS resolution failed")) return {};
  const size_t last = message.rfind(": ");
  const std::string reason = last == std::string::npos ? message : message.substr(last + 2);
  if (reason.starts_with("recvmsg:") || reason == "Socket closed" || reason.starts_with("Trying to connect an http1")) return kNoGrpc;
  return (message.find("handshake failed") == std::string::npos ? "" : "TLS handshake failed, ") + reason;
}

}  // namespace gpupool::pool
