// Reads the TLS options of poold's and pool-scheduler's TOML files. Stateless; any thread.
#pragma once
#include <toml++/toml.h>

#include <string_view>

#include "common/result.h"
#include "protocol/transport/transport.h"

namespace gpupool::settings {

// Reads a table with certificate, key, and under the key `ca` the authorities of the other side's
// certificates. ErrorCode::invalid names a wrong key.
Result<void> to_tls(const toml::node& node, std::string_view ca, transport::TlsOptions& out);

}  // namespace gpupool::settings
