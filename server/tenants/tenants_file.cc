#include "server/tenants/tenants_file.h"

#include <pwd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "common/settings/toml_values.h"
#include "common/text/suggestion.h"
#include "common/text/units.h"
#include "common/token/token.h"
#include "server/quota/quota_members.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {
namespace {

using namespace settings;

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

Result<void> to_choice(quota::Unit unit, const toml::node& node, uint64_t& out) {
  const auto text = node.value_exact<std::string>();
  std::map<uint64_t, std::string_view> names;
  for (const quota::Choice& choice : quota::choices_of(unit)) {
    if (text && *text == choice.name) return out = choice.value, Result<void>();
    names.emplace(choice.value, choice.name);
  }
  std::string list;
  for (const auto& [value, name] : names) list += (list.empty() ? "" : ", ") + std::string(name);
  return wrong("must be one of " + list);
}

Result<void> read_value(quota::Unit unit, const toml::node& node, uint64_t& out) {
  if (const auto parse = quota::size_parser(unit)) return to_bytes(node, parse, out);
  if (!quota::choices_of(unit).empty()) return to_choice(unit, node, out);
  uint32_t number = 0;
  const auto read = unit == quota::Unit::percent
                        ? to_compute(node, number)
                        : to_count(node, 0, std::numeric_limits<uint32_t>::max(), number);
  out = number;
  return read;
}

Error unknown_key(std::string_view key) {
  std::vector<std::string_view> keys;
  for (const quota::Kind& kind : quota::kKinds) keys.push_back(kind.key);
  return wrong("unknown key; quota keys are " + quota::names_of_kinds(quota::Spelling::key, false) +
               suggestion(key, keys));
}

Result<void> read_quota(const toml::node& node, quota::Quota& quota) {
  const auto read = for_each_key(node, [&](std::string_view key, const toml::node& value) {
    const quota::Kind* const kind = quota::find_kind(key);
    if (!kind) return Result<void>(unknown_key(key));
    uint64_t number = 0;
    auto good = read_value(kind->unit, value, number);
    if (good) quota::member_of(*kind).set(quota, number);
    return good;
  });
  return read ? check_share(quota.each) : read;
}

// Reads [tenant.gpu.0] or [tenant.gpu.GPU-...]: limits of one GPU that differ from the quota.
Result<void> read_gpu(std::string_view name, const toml::node& node, Tenant& tenant) {
  quota::GpuLimits limits;
  const auto read = for_each_key(node, [&](std::string_view key, const toml::node& value) {
    const quota::Kind* const kind = quota::find_kind(key);
    if (!kind || !kind->per_gpu)
      return Result<void>(
          wrong("unknown key; keys are " + quota::names_of_kinds(quota::Spelling::key, true)));
    uint64_t number = 0;
    auto good = read_value(kind->unit, value, number);
    if (good) quota::member_of(*kind).set_of_gpu(limits, number);
    return good;
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
