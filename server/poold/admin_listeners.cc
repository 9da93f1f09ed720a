#include "server/poold/admin_listeners.h"

#include <unistd.h>

#include <string>

#include "common/log/log.h"
#include "protocol/control/admin_address.h"

namespace gpupool::server {

Result<void> serve_administration(Administration& administration, const ServerOptions& options,
                                  const Addresses& addresses) {
  const uint64_t name = addresses.port != 0 ? addresses.port : static_cast<uint64_t>(::getpid());
  const bool asked = !options.admin_socket.empty();
  const std::string path = asked ? options.admin_socket : admin::default_socket(name);
  if (!administration.serve_kept_socket(path) && path != "none") {
    const auto served = administration.serve_socket(path);
    if (!served && asked) return served;
    if (!served) log::warning("no_admin_socket", {{"reason", served.error().message}});
  }
  if (options.metrics.empty()) return {};
  return administration.serve_metrics(options.metrics);
}

}  // namespace gpupool::server
