#include "server/poold/reload.h"

#include <utility>

#include "server/poold/listeners.h"
#include "server/poold/node/pool_options.h"

namespace gpupool::server {

Result<Reloaded> read_again(const ServerOptions& options, bool needs_credentials) {
  Reloaded read;
  if (auto good = read_config(options.config_file, read.options); !good) return good.error();
  if (needs_credentials && !options.insecure && !any_credentials(read.options)) {
    return Error{ErrorCode::invalid,
                 "poold listens beyond this host, but no [[tenant]] has tokens or certificates"};
  }
  if (listens_with_tls(options)) {
    auto tls = transport::tls::Context::server(options.tls);
    if (!tls) return tls.error();
    read.tls = std::move(*tls);
  }
  auto keys = read_public_keys(read.options.pool.public_keys.empty() ? options.pool.public_keys
                                                                     : read.options.pool.public_keys);
  if (!keys) return keys.error();
  read.keys = std::move(*keys);
  return read;
}

}  // namespace gpupool::server
