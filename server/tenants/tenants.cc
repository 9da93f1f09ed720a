#include "server/tenants/tenants.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "common/log/log.h"
#include "common/text/units.h"

namespace gpupool::server {
namespace {

constexpr size_t kLongestName = 64;

Error wrong(const std::string& why) {
  return {ErrorCode::invalid, why};
}

// Names appear in log lines, commands and metrics.
bool is_name(const std::string& text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= kLongestName && std::all_of(text.begin(), text.end(), fits);
}

template <class T>
bool all_new(const std::vector<T>& values, std::set<T>& seen) {
  return std::all_of(values.begin(), values.end(), [&](const T& value) { return seen.insert(value).second; });
}

Error too_much(uint64_t milli, const std::string& gpu) {
  return wrong("compute: the tenants' partitions would use " + percent_text(milli) + " % of " + gpu);
}

// Sums the partitions of each GPU, and separately of GPUs on which some tenant has other limits.
class PartitionSum {
 public:
  // Fails if the sum exceeds a GPU.
  Result<void> add(const Tenant& tenant) {
    const quota::Quota& quota = tenant.quota;
    if (quota.mode != quota::Mode::partition) return {};
    std::map<std::string, quota::GpuLimits> others = tenant.named_gpus;
    for (const auto& [gpu, limits] : quota.gpus) others.emplace("GPU " + std::to_string(gpu), limits);
    for (const auto& [gpu, limits] : others) sums_.try_emplace(gpu, each_);
    each_ += quota.each.compute_milli;
    if (each_ > quota::kWholeGpu) return too_much(each_, "each GPU");
    for (auto& [gpu, sum] : sums_) {
      const auto own = others.find(gpu);
      sum += (own == others.end() ? quota.each : quota.with(own->second)).compute_milli;
      if (sum > quota::kWholeGpu) return too_much(sum, gpu);
    }
    return {};
  }

 private:
  uint64_t each_ = 0;
  std::map<std::string, uint64_t> sums_;
};

}  // namespace

Tenants::Tenants() : Tenants(std::vector<Tenant>{}) {}

Tenants::Tenants(std::vector<Tenant> configured, Anonymous anonymous)
    : anonymous_(anonymous), tenants_(by_name(std::move(configured))) {}

std::map<std::string, Tenant> Tenants::by_name(std::vector<Tenant> configured) const {
  if (configured.empty() && anonymous_ == Anonymous::served) {
    Tenant anybody;
    anybody.name = kDefaultTenant;
    configured.push_back(std::move(anybody));
  }
  std::map<std::string, Tenant> tenants;
  for (Tenant& tenant : configured) {
    find_gpus(tenant);
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
  return std::any_of(tenants_.begin(), tenants_.end(),
                     [](const auto& entry) { return entry.second.has_credentials(); });
}

Result<void> Tenants::set_quota(const std::string& name, const quota::Quota& quota) {
  const auto found = tenants_.find(name);
  if (found == tenants_.end()) return Error{ErrorCode::unavailable, "there is no tenant '" + name + "'"};
  if (auto checked = check_quota(quota); !checked) return checked;
  Tenant& tenant = found->second;
  if (tenant.quota == quota) return {};
  PartitionSum partitions;
  for (const auto& [other, its] : tenants_) {
    if (other != name) (void)partitions.add(its);
  }
  Tenant changed = tenant;
  changed.quota = quota;
  if (auto added = partitions.add(changed); !added) return added;
  configured_.emplace(name, tenant.quota);  // the first change keeps the configured quota
  tenant.quota = quota;
  log::info("quota_changed", {{"tenant", name}});
  tell(tenant);
  return {};
}

std::vector<std::string> Tenants::changed() const {
  std::vector<std::string> names;
  for (const auto& [name, quota] : configured_) {
    if (const Tenant* const tenant = find(name); tenant && tenant->quota != quota) names.push_back(name);
  }
  return names;
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
      log::warning("runtime_quota_overwritten",
                   {{"tenant", name}, {"reason", "the configuration was reloaded"}});
    }
    if (old == before.end() || old->second.quota != tenant.quota) tell(tenant);
  }
}

void Tenants::find_gpus(Tenant& tenant) const {
  if (gpus_.empty()) return;
  for (auto& [uuid, limits] : std::exchange(tenant.named_gpus, {})) {
    const auto found = std::find(gpus_.begin(), gpus_.end(), uuid);
    if (found == gpus_.end())
      log::warning("quota_of_unknown_gpu", {{"tenant", tenant.name}, {"gpu", uuid}});
    else
      tenant.quota.gpus.insert_or_assign(static_cast<uint32_t>(found - gpus_.begin()), limits);
  }
  for (const auto& [gpu, limits] : tenant.quota.gpus) {
    if (gpu >= gpus_.size()) log::warning("quota_of_unknown_gpu", {{"tenant", tenant.name}, {"gpu", gpu}});
  }
}

void Tenants::set_gpu_uuids(std::vector<std::string> uuids) {
  gpus_ = std::move(uuids);
  for (auto& [name, tenant] : tenants_) {
    const auto before = tenant.quota;
    find_gpus(tenant);
    if (tenant.quota != before) tell(tenant);
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

Result<void> check_share(const quota::GpuShare& share) {
  if (share.compute_milli < 1 || share.compute_milli > quota::kWholeGpu) {
    return wrong("compute: must be a percentage from 0.1 to 100, in steps of 0.1");
  }
  if (share.memory_bytes != 0 && share.guaranteed_memory_bytes > share.memory_bytes) {
    return wrong("guaranteed_memory: must not be more than memory");
  }
  return {};
}

Result<void> check_quota(const quota::Quota& quota) {
  if (auto checked = check_share(quota.each); !checked) return checked;
  for (const auto& [gpu, limits] : quota.gpus) {
    if (auto checked = check_share(quota.with(limits)); !checked) {
      return wrong("GPU " + std::to_string(gpu) + ": " + checked.error().message);
    }
  }
  return {};
}

std::string gpu_uuid(std::string_view text) {
  constexpr std::string_view kForm = "gpu-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (text.size() != kForm.size()) return "";
  std::string uuid(text);
  for (size_t i = 0; i < uuid.size(); ++i) {
    uuid[i] = static_cast<char>(std::tolower(static_cast<unsigned char>(uuid[i])));
    if (kForm[i] == 'x' ? !std::isxdigit(static_cast<unsigned char>(uuid[i])) : uuid[i] != kForm[i])
      return "";
  }
  return "GPU" + uuid.substr(3);
}

std::map<std::string, quota::Partitions::Shares> partitions_of(const std::map<std::string, Tenant>& tenants) {
  std::map<std::string, quota::Partitions::Shares> shares;
  for (const auto& [name, tenant] : tenants) {
    if (tenant.quota.mode != quota::Mode::partition) continue;
    auto& share = shares[name];
    for (uint32_t gpu = 0; gpu < share.size(); ++gpu) share[gpu] = tenant.quota.of(gpu).compute_milli;
  }
  return shares;
}

Result<void> check_tenants(const std::vector<Tenant>& tenants) {
  std::set<std::string> names, certificates;
  std::set<TokenHash> tokens;
  std::set<uid_t> users;
  PartitionSum partitions;
  const auto shows = [](const Tenant& tenant) { return tenant.has_credentials(); };
  const bool any_shows = std::any_of(tenants.begin(), tenants.end(), shows);
  for (const Tenant& tenant : tenants) {
    const std::string place = "tenant '" + tenant.name + "': ";
    if (!is_name(tenant.name)) {
      return wrong(place + "name: must be 1 to " + std::to_string(kLongestName) +
                   " letters, digits, '-', '_' or '.'");
    }
    if (!names.insert(tenant.name).second) return wrong(place + "duplicate name");
    if (auto checked = check_share(tenant.quota.each); !checked)
      return wrong(place + "quota." + checked.error().message);
    for (const auto& [gpu, limits] : tenant.quota.gpus) {
      if (auto checked = check_share(tenant.quota.with(limits)); !checked)
        return wrong(place + "gpu." + std::to_string(gpu) + ": " + checked.error().message);
    }
    for (const auto& [gpu, limits] : tenant.named_gpus) {
      if (auto checked = check_share(tenant.quota.with(limits)); !checked)
        return wrong(place + "gpu." + gpu + ": " + checked.error().message);
    }
    if (auto added = partitions.add(tenant); !added) return wrong(place + "quota." + added.error().message);
    if (any_shows && !shows(tenant)) {
      return wrong(place +
                   "has no tokens, certificates or users, but another tenant has: no client could "
                   "authenticate as it; make a token with "
                   "poold --make-token");
    }
    if (!all_new(tenant.tokens, tokens) || !all_new(tenant.retired_tokens, tokens)) {
      return wrong(place +
                   "tokens, retired_tokens: duplicate token; make one for each with poold --make-token");
    }
    if (!all_new(tenant.certificates, certificates)) return wrong(place + "certificates: duplicate name");
    if (!all_new(tenant.users, users)) return wrong(place + "users: duplicate user");
  }
  return {};
}

}  // namespace gpupool::server
