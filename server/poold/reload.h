// Reads poold's files again for a reload (SIGHUP). Nothing takes effect here: the daemon applies the settings
// if all of them are valid. poold's thread.
#pragma once
#include <memory>
#include <vector>

#include "common/result.h"
#include "protocol/lease/token.h"
#include "protocol/transport/tls/context.h"
#include "server/poold/options.h"

namespace gpupool::server {

struct Reloaded {
  ServerOptions options;                               // from the configuration file
  std::shared_ptr<const transport::tls::Context> tls;  // null: no tls:// address
  std::vector<lease::PublicKey> keys;
};

// `options`: with which poold was started. `needs_credentials`: poold listens beyond this host, and no leases
// authenticate its clients.
Result<Reloaded> read_again(const ServerOptions& options, bool needs_credentials);

}  // namespace gpupool::server
