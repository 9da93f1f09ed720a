// The table of transports in this build: one row per scheme (transport.cc). It is a constant, not registered
// at load time, so that the client library has no global constructors.
#pragma once
#include <memory>
#include <string_view>

#include "protocol/transport/transport.h"

namespace gpupool::transport {

struct Backend {
  std::string_view scheme;
  Result<std::unique_ptr<Connection>> (*connect)(const Endpoint& endpoint, const Options& options);
  Result<std::unique_ptr<Listener>> (*listen)(const Endpoint& endpoint, const Options& options);
  Result<std::unique_ptr<Connection>> (*adopt)(int descriptor, const Options& options);
};

}  // namespace gpupool::transport
