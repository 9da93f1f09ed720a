#include "server/tenants/tenants.h"

#include <algorithm>
#include <set>
#include <utility>

#include "server/log/log.h"

namespace gpupool::server {
namespace {

constexpr size_t kLongestName = 64;

Error wrong(const std::string& why) {
  return {ErrorCode::invalid, why};
}

// They stand in log lines, in commands and in metrics.
bool is_name(const std::string& text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= kLongestName && std::all_of(text.begin(), text.end(), fits);
}

template <class T>
bool all_new(const std::vector<T>& values, std::set<T>& seen) {
  return std::all_of(values.begin(), values.end(), [&](const T& value) { return seen.insert(value).second; });
}

Error too_much(uint64_t percent) {
  return wrong("compute: the tenants' partitions would be " + std::to_string(percent) + " % of each GPU");
}

}  // namespace

Tenants::Tenants() : Tenants(std::vector<Tenant>{}) {}

Tenants::Tenants(std::vector<Tenant> configured, Without without_credentials)
    : without_(without_credentials), tenants_(by_name(std::move(configured))) {}

std::map<std::string, Tenant> Tenants::by_name(std::vector<Tenant> configured) const {
  if (configured.empty() && without_ == Without::anybody) {
    Tenant anybody;
    anybody.name = kDefaultTenant;
    configured.push_back(std::move(anybody));
  }
  std::map<std::string, Tenant> tenants;
  for (Tenant& tenant : configured) {
    std::string name = tenant.name;
    tenants.emplace(std::move(name), std::move(tenant));
  }
  return tenants;
}

const Tenant* Tenants::find(const std::string& name) const {
  const auto found = tenants_.find(name);
  return found == tenants_.end() ? nullptr : &found->second;
}

bool Tenants::has_credentials() const {
  return std::any_of(tenants_.begin(), tenants_.end(), [](const auto& entry) { return entry.second.has_credentials(); });
}

Result<void> Tenants::set_quota(const std::string& name, const quota::Quota& quota) {
  const auto found = tenants_.find(name);
  if (found == tenants_.end()) return Error{ErrorCode::unavailable, "there is no tenant '" + name + "'"};
  if (auto checked = check_quota(quota); !checked) return checked;
  Tenant& tenant = found->second;
  uint32_t partitions = quota.mode == quota::Mode::partition ? quota.compute_percent : 0;
  for (const auto& [other, percent] : partitions_of(tenants_)) partitions += other == name ? 0 : percent;
  if (quota.mode == quota::Mode::partition && partitions > 100) return too_much(partitions);
  if (tenant.quota == quota) return {};
  configured_.emplace(name, tenant.quota);  // the first change keeps what the file says
  tenant.quota = quota;
  log::info("quota_changed", {{"tenant", name}});
  tell(tenant);
  return {};
}

void Tenants::replace(std::vector<Tenant> configured) {
  auto changed = std::exchange(configured_, {});
  const auto before = std::exchange(tenants_, by_name(std::move(configured)));
  for (const auto& [name, tenant] : before) {
    if (tenant.leased) tenants_.emplace(name, tenant);
  }
  for (const auto& [name, tenant] : tenants_) {
    const auto old = before.find(name);
    if (changed.contains(name) && tenant.quota != old->second.quota) {
      log::warning("runtime_quota_overwritten", {{"tenant", name}, {"reason", "the configuration was read again"}});
    }
    if (old == before.end() || old->second.quota != tenant.quota) tell(tenant);
  }
}

void Tenants::put_lease(Tenant tenant) {
  tenant.leased = true;
  const std::string name = tenant.name;
  tell(tenants_.insert_or_assign(name, std::move(tenant)).first->second);
}

void Tenants::remove_lease(const std::string& name) {
  const auto found = tenants_.find(name);
  if (found == tenants_.end() || !found->second.leased) return;
  tenants_.erase(found);
  configured_.erase(name);
  for (const auto& removed : removal_listeners_) removed(name);
}

void Tenants::on_change(Changed changed) {
  for (const auto& [name, tenant] : tenants_) changed(tenant);
  listeners_.push_back(std::move(changed));
}

void Tenants::tell(const Tenant& tenant) const {
  for (const Changed& listener : listeners_) listener(tenant);
}

Result<void> check_quota(const quota::Quota& quota) {
  if (quota.compute_percent < 1 || quota.compute_percent > 100) return wrong("compute: must be a whole number from 1 to 100");
  if (quota.memory_bytes != 0 && quota.guaranteed_memory_bytes > quota.memory_bytes) {
    return wrong("guaranteed_memory: must not be more than memory");
  }
  return {};
}

std::map<std::string, uint32_t> partitions_of(const std::map<std::string, Tenant>& tenants) {
  std::map<std::string, uint32_t> percents;
  for (const auto& [name, tenant] : tenants) {
    if (tenant.quota.mode == quota::Mode::partition) percents.emplace(name, tenant.quota.compute_percent);
  }
  return percents;
}

Result<void> check_tenants(const std::vector<Tenant>& tenants) {
  std::set<std::string> names, certificates;
  std::set<TokenHash> tokens;
  std::set<uid_t> users;
  uint64_t partitions = 0;
  const auto shows = [](const Tenant& tenant) { return tenant.has_credentials(); };
  const bool any_shows = std::any_of(tenants.begin(), tenants.end(), shows);
  for (const Tenant& tenant : tenants) {
    if (!is_name(tenant.name)) {
      return wrong("name: must be 1 to " + std::to_string(kLongestName) + " letters, digits, '-', '_' or '.'");
    }
    const std::string place = "tenant '" + tenant.name + "': ";
    if (!names.insert(tenant.name).second) return wrong(place + "there are two of that name");
    if (auto checked = check_quota(tenant.quota); !checked) return wrong(place + "quota." + checked.error().message);
    if (tenant.quota.mode == quota::Mode::partition) partitions += tenant.quota.compute_percent;
    if (partitions > 100) return wrong(place + "quota." + too_much(partitions).message);
    if (any_shows && !shows(tenant)) {
      return wrong(place + "has no tokens, certificates or users although another tenant has: nobody could be this one; make a token with "
                           "poold --make-token");
    }
    if (!all_new(tenant.tokens, tokens)) return wrong(place + "tokens: one stands in the file twice; make one for each with poold --make-token");
    if (!all_new(tenant.certificates, certificates)) return wrong(place + "certificates: one stands in the file twice");
    if (!all_new(tenant.users, users)) return wrong(place + "users: one stands in the file twice");
  }
  return {};
}

}  // namespace gpupool::server
