#include "server/poold/configuration_warnings.h"

#include <algorithm>

#include "common/log/log.h"

namespace gpupool::server {

void warn_of_quota(const Tenant& tenant, const std::vector<control::Device>& devices) {
  uint64_t most = 0;
  for (const control::Device& gpu : devices) most = std::max<uint64_t>(most, gpu.total_bytes());
  const uint64_t limit = tenant.quota.each.memory_bytes;
  if (tenant.leased || most == 0 || limit <= most) return;
  log::warning("quota_without_effect",
               {{"tenant", tenant.name},
                {"quota_memory", limit},
                {"gpu_memory", most},
                {"reason", "the quota exceeds the memory of every GPU of this host"}});
}

void warn_of_users(const ServerOptions& options, const std::map<std::string, Tenant>& tenants) {
  const auto at_path = std::find_if(options.listen.begin(), options.listen.end(), [](const auto& endpoint) {
    return endpoint.scheme == "shm" && !endpoint.host.starts_with('@');
  });
  const auto has_users = [](const auto& entry) { return !entry.second.users.empty(); };
  if (options.users_at_paths || at_path == options.listen.end() ||
      std::none_of(tenants.begin(), tenants.end(), has_users))
    return;
  log::warning("users_need_tokens", {{"address", at_path->text()},
                                     {"reason",
                                      "user IDs of [[tenant]] do not authenticate on sockets at paths, "
                                      "which containers may share; use tokens, "
                                      "or --users-at-paths if no container shares the folder"}});
}

}  // namespace gpupool::server
