#include "server/poold/check_host.h"

#include <filesystem>
#include <set>

#include "common/sanitizers.h"
#include "protocol/transport/rdma_options.h"
#include "server/confinement/layers.h"
#include "server/confinement/secrets.h"

namespace gpupool::server {
namespace {

constexpr bool kFiltersCalls = !kSanitized;

ConfinementSettings settings_of(const ServerOptions& options) {
  return {.sandbox = options.sandbox,
          .users = options.worker_users,
          .rdma = options.rdma && transport::has_rdma_device(),
          .filters = kFiltersCalls,
          .limits = options.worker_limits};
}

std::vector<std::string> readable_secrets_of(const ServerOptions& options,
                                             const std::string& device_library) {
  const std::vector<Secret> secrets{{"--tls-key", options.tls.key},
                                    {"--pool-token-file", options.pool.token_file},
                                    {"--suspended-key", options.suspended_key},
                                    {"--suspended-folder", options.suspended_folder}};
  return readable_secrets(secrets, settings_of(options),
                          {std::filesystem::path(device_library).parent_path()});
}

}  // namespace

int check_host(const ServerOptions& options) {
  return print_layers(check_layers(settings_of(options))) ? 0 : kExitFailure;
}

Result<void> check_secrets(const ServerOptions& options, const std::string& device_library) {
  if (options.insecure || options.sandbox == Sandbox::off) return {};
  const auto found = readable_secrets_of(options, device_library);
  if (found.empty()) return {};
  return Error{ErrorCode::invalid, found.front() + "; --insecure starts poold anyway"};
}

std::shared_ptr<Cgroups> open_cgroups(const ServerOptions& options, const upgrade::State* previous) {
  if (previous && !previous->cgroup().empty()) {
    std::set<std::string> in_use;
    for (const auto& session : previous->pool().sessions()) in_use.insert(session.cgroup());
    return Cgroups::take_over(previous->cgroup(), options.worker_limits, in_use);
  }
  if (options.sandbox == Sandbox::off) return nullptr;
  auto opened = Cgroups::open(options.worker_limits);
  if (opened) return std::move(*opened);
  if (opened.error().code != ErrorCode::unavailable)
    log::warning("confinement", {{"missing", "control group"}, {"reason", opened.error().message}});
  return nullptr;
}

std::function<void()> check_confinement(const ServerOptions& options, const std::string& device_library) {
  return
      [layers = check_layers(settings_of(options)), secrets = readable_secrets_of(options, device_library)] {
        for (const Layer& layer : layers) {
          if (layer.state == Layer::State::missing)
            log::warning("confinement", {{"missing", layer.name}, {"reason", layer.text}});
        }
        for (const std::string& why : secrets) log::warning("secret_within_reach", {{"reason", why}});
      };
}

}  // namespace gpupool::server
