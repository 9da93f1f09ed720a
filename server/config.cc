// The TOML file of poold: the same keys as the command line's long options.
#include <toml++/toml.h>

#include "server/options.h"
#include "server/tenants/tenants_file.h"

namespace gpupool::server {
namespace {

Error bad_key(const std::string& path, std::string_view key, const std::string& why) {
  return {ErrorCode::invalid, "configuration file '" + path + "': " + std::string(key) + ": " + why};
}

Result<void> to_text(const toml::node& node, std::string& out) {
  const auto value = node.value_exact<std::string>();
  if (!value) return Error{ErrorCode::invalid, "must be a string"};
  out = *value;
  return {};
}

Result<void> to_count(const toml::node& node, unsigned lowest, unsigned highest, unsigned& out) {
  const auto value = node.value_exact<int64_t>();
  if (!value || *value < lowest || *value > highest) {
    return Error{ErrorCode::invalid,
                 "must be a whole number from " + std::to_string(lowest) + " to " + std::to_string(highest)};
  }
  out = static_cast<unsigned>(*value);
  return {};
}

Result<void> to_seconds(const toml::node& node, std::chrono::milliseconds& out) {
  const auto value = node.value<double>();
  if (!node.is_number() || !value || !(*value >= kLeastSeconds && *value <= kMostSeconds)) {
    return Error{ErrorCode::invalid, "must be a number of seconds from 0.001 to 86400"};
  }
  out = to_milliseconds(*value);
  return {};
}

Result<void> to_flag(const toml::node& node, bool& out) {
  const auto value = node.value_exact<bool>();
  if (!value) return Error{ErrorCode::invalid, "must be true or false"};
  out = *value;
  return {};
}

// [rdma]: `enabled`, and the options that begin with --rdma-. Numbers may be given as such or as text.
Result<void> to_rdma(const toml::node& node, ServerOptions& options) {
  const toml::table* const table = node.as_table();
  if (!table) return Error{ErrorCode::invalid, "must be a table"};
  for (const auto& [key, value] : *table) {
    Result<void> read;
    if (key.str() == "enabled") {
      read = to_flag(value, options.rdma);
    } else {
      const auto number = value.value_exact<int64_t>();
      std::string text = number ? std::to_string(*number) : "";
      if (!number) read = to_text(value, text);
      if (read) read = set_rdma(key.str(), text, options);
    }
    if (!read) return Error{ErrorCode::invalid, std::string(key.str()) + ": " + read.error().message};
  }
  return {};
}

Result<void> to_tls(const toml::node& node, transport::TlsOptions& tls) {
  const toml::table* const table = node.as_table();
  if (!table) return Error{ErrorCode::invalid, "must be a table"};
  for (const auto& [key, value] : *table) {
    std::string* const out = key.str() == "certificate" ? &tls.certificate
                             : key.str() == "key"       ? &tls.key
                             : key.str() == "client_ca" ? &tls.ca
                                                        : nullptr;
    const Result<void> read = out ? to_text(value, *out) : Error{ErrorCode::invalid, "unknown key; [tls] has certificate, key, client_ca"};
    if (!read) return Error{ErrorCode::invalid, std::string(key.str()) + ": " + read.error().message};
  }
  return {};
}

template <class T>
Result<void> to_choice(const toml::node& node, const char* choices, T& out) {
  const auto value = node.value_exact<std::string>();
  if (!value || !log::parse(*value, out))
    return Error{ErrorCode::invalid, std::string("must be one of ") + choices};
  return {};
}

Result<void> read_key(std::string_view key, const toml::node& node, ServerOptions& options) {
  if (key == "worker-user") return to_text(node, options.worker_user);
  if (key == "sandbox") return to_flag(node, options.sandbox);
  if (key == "peers") return to_text(node, options.peers);
  if (key == "listen") {
    options.listen.clear();
    const toml::array one{node};
    const toml::array* const many = node.is_array() ? node.as_array() : &one;
    for (const toml::node& entry : *many) {
      std::string text;
      if (!to_text(entry, text)) return Error{ErrorCode::invalid, "must be a string or an array of strings"};
      auto endpoint = transport::Endpoint::parse(text);
      if (!endpoint) return endpoint.error();
      options.listen.push_back(*endpoint);
    }
    if (options.listen.empty()) return Error{ErrorCode::invalid, "must name at least one address"};
    return {};
  }
  if (key == "no-shm") {
    bool off = false;
    auto read = to_flag(node, off);
    if (read) options.shared_memory = !off;
    return read;
  }
  if (key == "tenant" || key == "default_quota") return {};  // read_tenants()
  if (key == "audit-file") return to_text(node, options.audit_file);
  if (key == "pool") return read_pool(node, options.pool);
  if (key == "tls") return to_tls(node, options.tls);
  if (key == "rdma") return to_rdma(node, options);
  if (key == "device") return to_text(node, options.device);
  if (key == "port-file") return to_text(node, options.port_file);
  if (key == "admin-socket") return to_text(node, options.admin_socket);
  if (key == "metrics") return to_text(node, options.metrics);
  if (key == "idle-workers") return to_count(node, 1, kMostIdleWorkers, options.idle_workers);
  if (key == "max-sessions") return to_count(node, 1, kMostSessions, options.max_sessions);
  if (key == "image-cache-mib") return to_count(node, 0, kMostImageCacheMib, options.image_cache_mib);
  if (key == "host-memory-for-idle-mib") return to_count(node, 0, kMostHostMemoryMib, options.host_memory_for_idle_mib);
  if (key == "hello-timeout") return to_seconds(node, options.hello_timeout);
  if (key == "turn-limit") return to_seconds(node, options.turn_limit);
  if (key == "dead-peer-timeout") return to_seconds(node, options.dead_peer_timeout);
  if (key == "log-level") return to_choice(node, kLogLevels, options.log_level);
  if (key == "log-format") return to_choice(node, kLogFormats, options.log_format);
  if (key == "insecure") return to_flag(node, options.insecure);
  return Error{ErrorCode::invalid, "unknown key; the keys are those of poold --help, without the dashes, and tenant, default_quota"};
}

}  // namespace

Result<void> read_config(const std::string& path, ServerOptions& options) {
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    return Error{ErrorCode::invalid, "configuration file '" + path + "'" +
                                         (line > 0 ? ", line " + std::to_string(line) : "") + ": " +
                                         std::string(error.description())};
  }
  for (const auto& [key, node] : table) {
    if (auto read = read_key(key.str(), node, options); !read)
      return bad_key(path, key.str(), read.error().message);
  }
  auto tenants = read_tenants(table);
  if (!tenants) return Error{ErrorCode::invalid, "configuration file '" + path + "': " + tenants.error().message};
  options.tenants = std::move(*tenants);
  return {};
}

}  // namespace gpupool::server
