#include "server/tenants/tenants_file.h"

#include <pwd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "common/settings/toml_values.h"
#include "common/text/suggestion.h"
#include "common/text/units.h"
#include "common/token/token.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {
namespace {

using namespace settings;

Result<void> to_limit(const toml::node& node, uint32_t& out) {
  return to_count(node, 0, std::numeric_limits<uint32_t>::max(), out);
}

constexpr std::pair<std::string_view, quota::Mode> kModes[] = {
    {"elastic", quota::Mode::elastic}, {"hard", quota::Mode::hard}, {"partition", quota::Mode::partition}};
constexpr std::pair<std::string_view, quota::Priority> kPriorities[] = {
    {"best-effort", quota::Priority::best_effort},
    {"normal", quota::Priority::normal},
    {"latency-critical", quota::Priority::latency_critical}};

Result<void> to_compute(const toml::node& node, uint32_t& out) {
  char text[32];
  char* end = text;
  if (const auto value = node.value<double>(); node.is_number() && value && std::abs(*value) < 1000) {
    // In the shortest form, as in the file.
    const auto written = std::to_chars(text, std::end(text), *value, std::chars_format::fixed);
    if (written.ec == std::errc()) end = written.ptr;
  }
  const auto milli = parse_compute({text, end});
  if (!milli) return node.is_string() ? wrong(milli.error().message + ", without quotes") : milli.error();
  out = *milli;
  return {};
}

// Reads the keys that a GPU's limits and a quota have in common. nullopt: another key.
std::optional<Result<void>> read_share(std::string_view key, const toml::node& node, quota::GpuLimits& out) {
  if (key == "memory") return to_bytes(node, parse_memory, out.memory_bytes.emplace());
  if (key == "guaranteed_memory") return to_bytes(node, parse_memory, out.guaranteed_memory_bytes.emplace());
  if (key == "compute") return to_compute(node, out.compute_milli.emplace());
  return std::nullopt;
}

// Keys of quotas may have hyphens, as in pool-admin's options.
std::string with_underscores(std::string_view key) {
  std::string out(key);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

Result<void> read_limit(const std::string& key, const toml::node& node, quota::Quota& quota) {
  quota::GpuLimits each;
  if (const auto read = read_share(key, node, each)) {
    quota.each = quota.with(each);
    return *read;
  }
  if (key == "mode") return to_choice(node, kModes, quota.mode);
  if (key == "priority") return to_choice(node, kPriorities, quota.priority);
  if (key == "bandwidth_to_device") return to_bytes(node, parse_rate, quota.to_device_bytes_per_second);
  if (key == "bandwidth_to_host") return to_bytes(node, parse_rate, quota.to_host_bytes_per_second);
  if (key == "sessions") return to_limit(node, quota.sessions);
  if (key == "streams") return to_limit(node, quota.streams);
  if (key == "modules") return to_limit(node, quota.modules);
  if (key == "queued_bytes") return to_bytes(node, parse_size, quota.queued_bytes);
  static const std::vector<std::string_view> keys{"memory",
                                                  "guaranteed_memory",
                                                  "compute",
                                                  "mode",
                                                  "priority",
                                                  "bandwidth_to_device",
                                                  "bandwidth_to_host",
                                                  "sessions",
                                                  "streams",
                                                  "modules",
                                                  "queued_bytes"};
  std::string names;
  for (const std::string_view name : keys) names += (names.empty() ? "" : ", ") + std::string(name);
  return wrong("unknown key; quota keys are " + names + suggestion(key, keys));
}

Result<void> read_quota(const toml::node& node, quota::Quota& quota) {
  const auto read = for_each_key(node, [&](std::string_view key, const toml::node& value) {
    return read_limit(with_underscores(key), value, quota);
  });
  return read ? check_share(quota.each) : read;
}

// Reads [tenant.gpu.0] or [tenant.gpu.GPU-...]: limits of one GPU that differ from the quota.
Result<void> read_gpu(std::string_view name, const toml::node& node, Tenant& tenant) {
  quota::GpuLimits limits;
  const auto read = for_each_key(node, [&](std::string_view key, const toml::node& value) {
    return read_share(with_underscores(key), value, limits)
        .value_or(wrong("unknown key; keys are memory, guaranteed_memory, compute"));
  });
  if (!read) return read;
  uint32_t number = 0;
  const auto digits = std::from_chars(name.data(), name.data() + name.size(), number);
  if (digits.ec == std::errc() && digits.ptr == name.data() + name.size() && number < quota::kMostGpus) {
    tenant.quota.gpus[number] = limits;
    return {};
  }
  const std::string uuid = gpu_uuid(name);
  if (uuid.empty()) {
    return wrong("must be a GPU's number from 0 to " + std::to_string(quota::kMostGpus - 1) +
                 ", or its UUID as printed by pool-admin gpus");
  }
  tenant.named_gpus[uuid] = limits;
  return {};
}

Result<void> add_token(const toml::node& node, std::vector<TokenHash>& tokens) {
  const auto hash = parse_token_hash(node.value_exact<std::string>().value_or(""));
  if (!hash) return hash.error();
  tokens.push_back(*hash);
  return {};
}

Result<void> add_certificate(const toml::node& node, Tenant& tenant) {
  const auto name = node.value_exact<std::string>();
  if (!name || name->empty()) return wrong("must be names in clients' certificates");
  tenant.certificates.push_back(*name);
  return {};
}

Result<void> add_user(const toml::node& node, Tenant& tenant) {
  if (const auto number = node.value_exact<int64_t>();
      number && *number >= 0 && *number < std::numeric_limits<uid_t>::max()) {
    tenant.users.push_back(static_cast<uid_t>(*number));
    return {};
  }
  const auto name = node.value_exact<std::string>();
  std::array<char, 16384> space;
  passwd entry{}, *found = nullptr;
  if (!name || ::getpwnam_r(name->c_str(), &entry, space.data(), space.size(), &found) != 0 || !found) {
    return wrong(name ? "this host has no user '" + *name + "'" : "must be user names or IDs of this host");
  }
  tenant.users.push_back(entry.pw_uid);
  return {};
}

Result<void> read_key(std::string_view key, const toml::node& node, Tenant& tenant) {
  if (key == "name") return {};
  if (key == "tokens")
    return for_each_entry(node, [&](const toml::node& entry) { return add_token(entry, tenant.tokens); });
  if (key == "retired_tokens")
    return for_each_entry(node,
                          [&](const toml::node& entry) { return add_token(entry, tenant.retired_tokens); });
  if (key == "certificates")
    return for_each_entry(node, [&](const toml::node& entry) { return add_certificate(entry, tenant); });
  if (key == "users")
    return for_each_entry(node, [&](const toml::node& entry) { return add_user(entry, tenant); });
  if (key == "quota") return read_quota(node, tenant.quota);
  if (key == "gpu")
    return for_each_key(
        node, [&](std::string_view name, const toml::node& gpu) { return read_gpu(name, gpu, tenant); });
  return wrong("unknown key; tenant keys are name, tokens, retired_tokens, certificates, users, quota, gpu");
}

Result<Tenant> read_tenant(const toml::table& table, const quota::Quota& usual) {
  Tenant tenant;
  tenant.quota = usual;
  const auto name = table["name"].value_exact<std::string>();
  if (!name)
    return wrong(table.contains("name") ? "name: must be a string" : "name: missing; write name = \"NAME\"");
  tenant.name = *name;
  for (const auto& [key, value] : table) {
    if (auto read = read_key(key.str(), value, tenant); !read) {
      return wrong(std::string(key.str()) +
                   ((key.str() == "quota" || key.str() == "gpu") && value.is_table() ? "." : ": ") +
                   read.error().message);
    }
  }
  return tenant;
}

}  // namespace

Result<std::vector<Tenant>> read_tenants(const toml::table& file) {
  quota::Quota usual;
  const toml::node* const default_quota = file.get("default_quota");
  if (default_quota) {
    if (auto read = read_quota(*default_quota, usual); !read)
      return wrong("default_quota." + read.error().message);
  }
  std::vector<Tenant> tenants;
  const auto read = for_each_table(file, "tenant", [&](const toml::table& table) -> Result<void> {
    auto tenant = read_tenant(table, usual);
    if (!tenant) return tenant.error();
    tenants.push_back(std::move(*tenant));
    return {};
  });
  if (!read) return read.error();
  if (tenants.empty() && default_quota) {
    tenants.emplace_back();
    tenants.back().name = kDefaultTenant;
    tenants.back().quota = usual;
  }
  if (auto checked = check_tenants(tenants); !checked) return checked.error();
  return tenants;
}

}  // namespace gpupool::server
