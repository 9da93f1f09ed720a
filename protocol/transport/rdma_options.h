// Reads RdmaOptions from text. One table of settings serves the environment of client and worker
// (GPUPOOL_RDMA_MTU), poold's command line (--rdma-mtu) and its configuration file ([rdma] mtu). Any thread
// that may call getenv().
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
  const char* values;    // allowed values, to follow "must be"
  const char* meaning;   // for --help, with the default in brackets
  // Returns false and leaves `out` unchanged if the value is not allowed.
  bool (*read)(std::string_view text, RdmaOptions& out);
};
std::span<const RdmaSetting> rdma_settings();
const RdmaSetting* find_rdma_setting(std::string_view name);

// Reads the GPUPOOL_RDMA_... variables. Invalid ones are ignored; `complain` gets a line for each.
RdmaOptions rdma_options_from_environment(const std::function<void(const std::string&)>& complain);

// True if the system has an RDMA device, usable or not. Looks at one folder of sysfs, so it costs little on
// machines without one.
bool has_rdma_device();

}  // namespace gpupool::transport
