// RdmaOptions from text. One table of settings serves the environment of client and worker (GPUPOOL_RDMA_MTU), poold's
// command line (--rdma-mtu) and its configuration file ([rdma] mtu).
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "protocol/transport/transport.h"

namespace gpupool::transport {

struct RdmaSetting {
  const char* name;      // "gid-index"
  const char* variable;  // "GPUPOOL_RDMA_GID_INDEX"
  const char* values;    // what it may be, to follow "is not"
  const char* meaning;   // for a person, with what holds where it is not set
  bool (*read)(std::string_view text, RdmaOptions& out);  // false, and `out` is as it was: no such value
};
std::span<const RdmaSetting> rdma_settings();
const RdmaSetting* find_rdma_setting(std::string_view name);

// What the GPUPOOL_RDMA_... variables say; `complain` gets a line for each wrong one, which counts as not set.
RdmaOptions rdma_options_from_environment(const std::function<void(const std::string&)>& complain);

// Does the system have any RDMA device, usable or not? Looks at one folder, so that machines without one pay nothing else.
bool has_rdma_device();

}  // namespace gpupool::transport
