#include "scheduler/service/callers.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "common/settings/toml_values.h"
#include "common/text/names.h"
#include "common/text/suggestion.h"
#include "common/text/units.h"
#include "common/token/token.h"
#include "protocol/control/pool_quota_kinds.h"
#include "protocol/control/priority.h"
#include "protocol/lease/token.h"
#include "scheduler/service/billing.h"

namespace gpupool::scheduler {
namespace {

using settings::wrong;

constexpr const char* kRoleNames[] = {"tenant", "node", "operator"};

std::string of_role(Role role) {
  return std::string(role == Role::operator_ ? "an " : "a ") + kRoleNames[static_cast<int>(role)] + "'s";
}

// Tells a caller without the role which option takes the token, and how to create one.
std::string token_needed(Role role) {
  constexpr const char* kOptions[] = {"pool-run --token-file, GPUPOOL_TOKEN_FILE", "poold --pool-token-file",
                                      "pool-admin --token-file, GPUPOOL_TOKEN_FILE"};
  return "use " + of_role(role) + " token (" + kOptions[static_cast<int>(role)] +
         "); create one with pool-scheduler --make-token and put its hash into [[" +
         kRoleNames[static_cast<int>(role)] + "]] of the scheduler's configuration";
}

Result<uint64_t> to_number(const toml::node& node, Result<uint64_t> (*parse)(std::string_view)) {
  if (const auto number = node.value_exact<int64_t>()) {
    if (*number < 0) return wrong("must not be negative");
    // Numbers from here on are taken as bytes; smaller ones go to `parse`, which may require a unit.
    constexpr int64_t kSurelyBytes = 1 << 20;
    return parse && *number < kSurelyBytes ? parse(std::to_string(*number)) : static_cast<uint64_t>(*number);
  }
  const auto text = node.value_exact<std::string>();
  if (!text || !parse) return wrong(parse ? "must be a number, or a string with a unit" : "must be a number");
  return parse(*text);
}

Result<uint64_t> read_value(pool::QuotaUnit unit, const toml::node& node) {
  switch (unit) {
    case pool::QuotaUnit::gpus: {
      const auto number = node.is_number() ? node.value<double>() : std::nullopt;
      if (!number || !(*number >= 0 && *number <= 1e9))
        return wrong("must be a number of GPUs, like 2 or 0.5");
      return static_cast<uint64_t>(std::llround(*number * kWholeGpu));
    }
    case pool::QuotaUnit::priority: {
      const auto named = pool::parse_priority(node.value_exact<std::string>().value_or(""));
      if (!named) return wrong(std::string("must be ") + pool::kPriorityNames);
      return static_cast<uint64_t>(*named);
    }
    case pool::QuotaUnit::memory: return to_number(node, parse_memory);
    case pool::QuotaUnit::rate: return to_number(node, parse_rate);
    case pool::QuotaUnit::count:
    case pool::QuotaUnit::weight: break;
  }
  return to_number(node, nullptr);
}

Error unknown_key(const std::string& key) {
  std::vector<std::string_view> keys;
  std::string names;
  for (const pool::QuotaKind& kind : pool::kQuotaKinds) {
    keys.push_back(kind.key);
    names += (names.empty() ? "" : ", ") + std::string(kind.key);
  }
  return wrong("unknown key; valid keys: " + names + suggestion(key, keys));
}

Result<void> read_limit(std::string key, const toml::node& node, pool::TenantQuota& quota) {
  std::replace(key.begin(), key.end(), '-', '_');  // pool-admin writes hyphens
  if (key == "compute") return wrong("use gpus instead: gpus = 0.5 is half of a GPU");
  const bool in_milli = key == "compute_milli";  // in configurations of earlier versions
  const pool::QuotaKind* const kind = pool::find_quota_kind(in_milli ? "gpus" : key);
  if (!kind) return unknown_key(key);
  const auto value = in_milli ? to_number(node, nullptr) : read_value(kind->unit, node);
  if (!value) return value.error();
  if (*value > kind->highest()) return wrong("is too large");
  kind->set(quota, *value);
  return {};
}

Result<pool::TenantQuota> read_quota(const toml::node& node) {
  const toml::table* const table = node.as_table();
  if (!table) return wrong("quota: must be a table");
  pool::TenantQuota quota;
  for (const auto& [key, value] : *table) {
    if (const auto read = read_limit(std::string(key.str()), value, quota); !read) {
      return wrong("quota." + std::string(key.str()) + ": " + read.error().message);
    }
  }
  if (const auto why = check_quota(quota)) return wrong("quota: " + *why);
  return quota;
}

struct CallerEntry {
  std::string name;
  std::vector<TokenHash> tokens, retired_tokens;
  pool::TenantQuota quota;
  std::vector<QuotaWindow> windows;
  std::vector<Budget> budgets;
};

Result<void> read_tokens(const toml::node& node, std::vector<TokenHash>& tokens) {
  const toml::array* const list = node.as_array();
  if (!list) return wrong("must be an array");
  for (const toml::node& one : *list) {
    const auto hash = parse_token_hash(one.value_exact<std::string>().value_or(""));
    if (!hash) return hash.error();
    tokens.push_back(*hash);
  }
  return {};
}

Result<CallerEntry> read_entry(const toml::table& table, bool is_tenant) {
  CallerEntry entry;
  for (const auto& [key, value] : table) {
    if (key.str() == "name") {
      entry.name = value.value_exact<std::string>().value_or("");
    } else if (key.str() == "tokens" || (key.str() == "retired_tokens" && is_tenant)) {
      const auto read = read_tokens(value, key.str() == "tokens" ? entry.tokens : entry.retired_tokens);
      if (!read) return wrong(std::string(key.str()) + ": " + read.error().message);
    } else if (key.str() == "quota" && is_tenant) {
      auto quota = read_quota(value);
      if (!quota) return quota.error();
      entry.quota = std::move(*quota);
    } else if (key.str() == "quota_at" && is_tenant) {
      auto windows = read_quota_windows(value, read_quota);
      if (!windows) return wrong("quota_at: " + windows.error().message);
      entry.windows = std::move(*windows);
    } else if (key.str() == "budgets" && is_tenant) {
      auto budgets = read_budgets(value);
      if (!budgets) return wrong("budgets: " + budgets.error().message);
      entry.budgets = std::move(*budgets);
    } else {
      return wrong(std::string(key.str()) + ": unknown key; valid keys: name, tokens" +
                   (is_tenant ? ", retired_tokens, quota, quota_at, budgets" : ""));
    }
  }
  if (!table.contains("name")) return wrong("name: missing; write name = \"NAME\"");
  if (!lease::is_name(entry.name)) return wrong("name: must be 1 to 64 letters, digits, '-', '_' or '.'");
  return entry;
}

}  // namespace

Result<Callers> Callers::read(const toml::table& file) {
  Callers callers;
  std::vector<ConfiguredTenant> tenants;
  std::string without_token;
  std::set<std::pair<Role, std::string>> names;
  for (const Role role : {Role::tenant, Role::node, Role::operator_}) {
    const std::string kind = kRoleNames[static_cast<int>(role)];
    const auto read = settings::for_each_table(file, kind, [&](const toml::table& table) -> Result<void> {
      auto entry = read_entry(table, role == Role::tenant);
      if (!entry) return entry.error();
      if (!names.insert({role, entry->name}).second) return wrong("duplicate name");
      if (entry->tokens.empty() && entry->retired_tokens.empty())
        without_token = kind + " '" + entry->name + "'";
      for (const bool retired : {false, true}) {
        for (const auto& token : retired ? entry->retired_tokens : entry->tokens) {
          if (!callers.by_token_.insert({token, {role, entry->name, retired}}).second)
            return wrong("tokens: duplicate token");
        }
      }
      if (role == Role::tenant)
        tenants.push_back(
            {entry->name, std::move(entry->quota), std::move(entry->windows), std::move(entry->budgets)});
      return {};
    });
    if (!read) return read.error();
  }
  auto prices = read_prices(file);
  if (!prices) return prices.error();
  callers.prices_ = std::move(*prices);
  if (const auto priced = callers.check_budgets(tenants); !priced) return priced.error();
  if (callers.has_tokens() && !without_token.empty())
    return wrong(without_token + " has no token, but other entries have one; all or none must have tokens");
  if (!tenants.empty() || callers.has_tokens()) callers.tenants_ = std::move(tenants);
  return callers;
}

Result<void> Callers::check_budgets(const std::vector<ConfiguredTenant>& tenants) const {
  if (!prices_.currency.empty()) return {};
  for (const ConfiguredTenant& tenant : tenants) {
    for (const Budget& budget : tenant.budgets) {
      if (!budget.in_gpu_hours)
        return wrong("tenant '" + tenant.name + "': budgets: an amount needs [prices]; or use gpu_hours");
    }
  }
  return {};
}

Result<const Caller*> Callers::find(const std::string& token, Role role) const {
  if (token.empty()) return Error{ErrorCode::refused, "authentication required: " + token_needed(role)};
  const auto found = token.size() < kShortestToken ? by_token_.end() : by_token_.find(hash_token(token));
  if (found == by_token_.end())
    return Error{ErrorCode::refused, "authentication failed: unknown token; " + token_needed(role)};
  if (found->second.role != role)
    return Error{ErrorCode::invalid,
                 "this token is " + of_role(found->second.role) + ": " + token_needed(role)};
  return &found->second;
}

Result<std::string> Callers::find_tenant(const std::string& token, const std::string& name,
                                         Purpose purpose) const {
  if (!has_tokens()) {
    const std::string wished = !name.empty()          ? name
                               : tenants_.size() == 1 ? tenants_[0].name
                                                      : kDefaultTenant;
    const bool known = std::any_of(tenants_.begin(), tenants_.end(),
                                   [&](const auto& tenant) { return tenant.name == wished; });
    if (!known) return Error{ErrorCode::invalid, "unknown tenant '" + brief_name(wished) + "'"};
    return wished;
  }
  const auto caller = find(token, Role::tenant);
  if (!caller) return caller.error();
  if ((*caller)->retired && purpose == Purpose::new_request)
    return Error{ErrorCode::refused, "this token is retired: use the tenant's current token"};
  if (!name.empty() && name != (*caller)->name) {
    return Error{ErrorCode::invalid, "this token belongs to tenant '" + (*caller)->name + "', not to '" +
                                         brief_name(name) + "': use that tenant's token, or omit the tenant"};
  }
  return (*caller)->name;
}

Result<std::string> Callers::find_node(const std::string& token, const std::string& name) const {
  if (!has_tokens()) return name;
  const auto caller = find(token, Role::node);
  if (!caller) return caller.error();
  if (name != (*caller)->name) {
    return Error{ErrorCode::invalid, "this token belongs to node '" + (*caller)->name + "', not to '" +
                                         brief_name(name) +
                                         "': give poold the other token (--pool-token-file) or the "
                                         "other name (--pool-name)"};
  }
  return name;
}

Result<void> Callers::check(const std::string& token, Role role) const {
  if (!has_tokens()) return {};
  const auto caller = find(token, role);
  if (!caller) return caller.error();
  return {};
}

Result<std::string> Callers::find_operator(const std::string& token) const {
  if (!has_tokens()) return std::string("operator");
  const auto caller = find(token, Role::operator_);
  if (!caller) return caller.error();
  return (*caller)->name;
}

}  // namespace gpupool::scheduler
