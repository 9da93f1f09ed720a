#include "server/quota/accounts.h"

#include <algorithm>

#include "server/quota/account_lock.h"

namespace gpupool::quota {

Accounts::Place::~Place() {
  for (auto& used : (*account_)->sessions[slot_].memory_used) used.store(0, std::memory_order_relaxed);
  (*account_)->shared.leave_all(slot_);
  AccountLock::release_for_dead(**account_, slot_);
  (*taken_)[slot_] = false;
}

Result<Accounts::Entry> Accounts::entry(const std::string& tenant) {
  if (const auto known = entries_.find(tenant); known != entries_.end()) return known->second;
  auto page = SharedPage<Account>::create("gpupool-account");
  if (!page) return page.error();
  return entries_
      .emplace(tenant, Entry{std::move(*page), std::make_shared<std::vector<bool>>(kMaxSessionsPerTenant)})
      .first->second;
}

Result<Accounts::Page> Accounts::of(const std::string& tenant) {
  auto found = entry(tenant);
  if (!found) return found.error();
  return found->account;
}

Result<void> Accounts::set(const std::string& tenant, const Quota& quota) {
  auto found = entry(tenant);
  if (!found) return found.error();
  Account& account = **found->account;
  bool limited = false;
  for (uint32_t gpu = 0; gpu < kMostGpus; ++gpu) {
    const uint64_t bytes = quota.of(gpu).memory_bytes;
    account.memory_limit[gpu].store(bytes);
    limited |= bytes != 0;
  }
  account.memory_limited.store(limited);
#define QUOTA_IN_WORKERS(type, member, with_memory, unit, key, title, importance, metric, help) \
  account.member.store(quota.most_##member());
#include "protocol/control/quota.def"
  return {};
}

Result<std::unique_ptr<Accounts::Place>> Accounts::take(const std::string& tenant) {
  auto found = entry(tenant);
  if (!found) return found.error();
  const auto free = std::find(found->taken->begin(), found->taken->end(), false);
  if (free == found->taken->end())
    return Error{ErrorCode::limit, "the tenant '" + tenant + "' has too many sessions"};
  const auto slot = static_cast<uint32_t>(free - found->taken->begin());
  *free = true;
  auto& slots = (*found->account)->slots;
  slots.store(std::max(slots.load(), slot + 1));
  return std::make_unique<Place>(found->taken, found->account, slot);
}

Result<std::unique_ptr<Accounts::Place>> Accounts::restore(const std::string& tenant, int descriptor,
                                                           uint32_t slot, bool current) {
  auto known = restored_.find(descriptor);
  if (known == restored_.end()) {
    auto page = SharedPage<Account>::open(descriptor);
    if (!page) return page.error();
    Entry entry{std::move(*page), std::make_shared<std::vector<bool>>(kMaxSessionsPerTenant)};
    if (current) entries_.insert_or_assign(tenant, entry);
    known = restored_.emplace(descriptor, std::move(entry)).first;
  }
  const Entry& entry = known->second;
  if (slot >= entry.taken->size() || (*entry.taken)[slot])
    return Error{ErrorCode::malformed, "slot " + std::to_string(slot) + " of the tenant '" + tenant + "'"};
  (*entry.taken)[slot] = true;
  return std::make_unique<Place>(entry.taken, entry.account, slot);
}

}  // namespace gpupool::quota
