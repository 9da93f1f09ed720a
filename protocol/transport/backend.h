// The table of transports that this build has: one row per scheme (transport.cc). No registration at load
// time, so that the client library stays free of global constructors.
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
