// Reads poold's TOML file, whose keys are the long options of the command line.
#include <string_view>
#include <utility>

#include "common/settings/toml_values.h"
#include "protocol/transport/tls/toml_options.h"
#include "server/poold/options.h"
#include "server/tenants/tenants_file.h"

namespace gpupool::server {
namespace {

using namespace settings;

// Reads [rdma]: `enabled`, and the --rdma-* options without that prefix. Numbers may be integers or strings.
Result<void> to_rdma(const toml::node& node, ServerOptions& options) {
  return for_each_key(node, [&](std::string_view key, const toml::node& value) -> Result<void> {
    if (key == "enabled") return to_flag(value, options.rdma);
    const auto number = value.value_exact<int64_t>();
    std::string text = number ? std::to_string(*number) : "";
    if (!number) {
      if (auto read = to_text(value, text); !read) return read;
    }
    return set_rdma(key, text, options);
  });
}

Result<void> to_endpoints(const toml::node& node, std::vector<transport::Endpoint>& out) {
  std::vector<std::string> texts;
  if (auto read = to_list(node, texts); !read) return read;
  std::vector<transport::Endpoint> endpoints;
  for (const std::string& text : texts) {
    auto endpoint = transport::Endpoint::parse(text);
    if (!endpoint) return endpoint.error();
    endpoints.push_back(*endpoint);
  }
  if (endpoints.empty()) return wrong("must have at least one address");
  out = std::move(endpoints);
  return {};
}

constexpr std::pair<std::string_view, Sandbox> kSandboxes[] = {
    {"on", Sandbox::on}, {"off", Sandbox::off}, {"log", Sandbox::log}};

// Also accepts true and false, the only values before "log" was added.
Result<void> to_sandbox(const toml::node& node, Sandbox& out) {
  if (const auto flag = node.value_exact<bool>()) {
    out = *flag ? Sandbox::on : Sandbox::off;
    return {};
  }
  return to_choice(node, kSandboxes, out);
}

Result<void> read_key(std::string_view key, const toml::node& node, ServerOptions& options) {
  if (key == "worker-users" || key == "worker-user") return to_text(node, options.worker_users);
  if (key == "worker-memory-mib")
    return to_count(node, 0, kMostHostMemoryMib, options.worker_limits.memory_mib);
  if (key == "worker-threads") return to_count(node, 0, kMostWorkerThreads, options.worker_limits.threads);
  if (key == "worker-cpus") return to_count(node, 0, kMostWorkerCpus, options.worker_limits.cpus);
  if (key == "sandbox") return to_sandbox(node, options.sandbox);
  if (key == "peers") return to_text(node, options.peers);
  if (key == "listen") return to_endpoints(node, options.listen);
  if (key == "no-shm") {
    bool off = false;
    auto read = to_flag(node, off);
    if (read) options.shared_memory = !off;
    return read;
  }
  if (key == "tenant" || key == "default_quota") return {};  // read_tenants()
  if (key == "audit-file") return to_text(node, options.audit_file);
  if (key == "pool") return read_pool(node, options.pool);
  if (key == "tls") return to_tls(node, "client_ca", options.tls);
  if (key == "rdma") return to_rdma(node, options);
  if (key == "device") return to_text(node, options.device);
  if (key == "port-file") return to_text(node, options.port_file);
  if (key == "admin-socket") return to_text(node, options.admin_socket);
  if (key == "metrics") return to_text(node, options.metrics);
  if (key == "idle-workers") return to_count(node, 1, kMostIdleWorkers, options.idle_workers);
  if (key == "max-sessions") return to_count(node, 1, kMostSessions, options.max_sessions);
  if (key == "image-cache-mib") return to_count(node, 0, kMostImageCacheMib, options.image_cache_mib);
  if (key == "code-cache-mib") return to_count(node, 0, kMostCodeCacheMib, options.code_cache_mib);
  if (key == "host-memory-for-idle-mib")
    return to_count(node, 0, kMostHostMemoryMib, options.host_memory_for_idle_mib);
  if (key == "host-memory-for-checkpoints-mib")
    return to_count(node, 0, kMostHostMemoryMib, options.host_memory_for_checkpoints_mib);
  if (key == "hello-timeout") return to_seconds(node, options.hello_timeout);
  if (key == "connections-per-second")
    return to_count(node, 1, kMostConnectionsPerSecond, options.connections_per_second);
  if (key == "turn-limit") return to_seconds(node, options.turn_limit);
  if (key == "dead-peer-timeout") return to_seconds(node, options.dead_peer_timeout);
  if (key == "log-level") return to_level(node, options.log_level);
  if (key == "log-format") return to_format(node, options.log_format);
  if (key == "insecure") return to_flag(node, options.insecure);
  if (key == "users-at-paths") return to_flag(node, options.users_at_paths);
  return wrong(
      "unknown key; the keys are those of poold --help, without the dashes, and the tables [pool], [tls], "
      "[rdma], [default_quota], [[tenant]]");
}

}  // namespace

Result<void> read_config(const std::string& path, ServerOptions& options) {
  const auto table = settings::read_file(path);
  if (!table) return table.error();
  const auto in_file = [&](const Error& error) {
    return wrong("configuration file '" + path + "': " + error.message);
  };
  const auto read = for_each_key(
      *table, [&](std::string_view key, const toml::node& node) { return read_key(key, node, options); });
  if (!read) return in_file(read.error());
  auto tenants = read_tenants(*table);
  if (!tenants) return in_file(tenants.error());
  options.tenants = std::move(*tenants);
  return {};
}

}  // namespace gpupool::server
