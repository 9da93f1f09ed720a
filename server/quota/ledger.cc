#include "server/quota/ledger.h"

#include <algorithm>

#include "server/quota/account_lock.h"

namespace gpupool::quota {
namespace {

// Limit of the wait for another worker that holds the lock and may be stopped.
constexpr std::chrono::milliseconds kPatience{2'000};

bool known(int gpu) {
  return gpu >= 0 && static_cast<size_t>(gpu) < kMostGpus;
}

void raise_to(std::atomic<uint64_t>& peak, uint64_t value) {
  uint64_t before = peak.load(std::memory_order_relaxed);
  while (before < value && !peak.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

bool Ledger::reserve(int gpu, uint64_t bytes) {
  if (!account_) return true;
  if (!known(gpu)) return !limited();
  Account& account = **account_;
  uint64_t used = 0;
  {
    // Also without a limit: one may be set meanwhile.
    const AccountLock account_lock(account, slot_, kPatience);
    if (!account_lock.held()) return false;
    if (!fits(gpu, bytes)) return false;
    used = account.sessions[slot_].memory_used[gpu].fetch_add(bytes) + bytes;
  }
  if (page_) {
    (*page_)->gpus[gpu].memory_used.fetch_add(bytes, std::memory_order_relaxed);
    peak_before_ = (*page_)->gpus[gpu].memory_peak.load(std::memory_order_relaxed);
    raise_to((*page_)->gpus[gpu].memory_peak, used);
  }
  return true;
}

void Ledger::undo_peak(int gpu) {
  if (account_ && page_ && known(gpu))
    (*page_)->gpus[gpu].memory_peak.store(peak_before_, std::memory_order_relaxed);
}

bool Ledger::fits(int gpu, uint64_t bytes) const {
  const uint64_t limit = (*account_)->memory_limit[gpu].load();
  if (limit == 0) return true;
  const uint64_t used = used_by_tenant(gpu);
  return used <= limit && bytes <= limit - used;
}

void Ledger::note_used(int gpu, int64_t bytes) {
  if (page_)
    (*page_)->gpus[gpu].memory_used.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
}

void Ledger::release(int gpu, uint64_t bytes) {
  if (!account_ || !known(gpu)) return;
  (*account_)->sessions[slot_].memory_used[gpu].fetch_sub(bytes);
  note_used(gpu, -static_cast<int64_t>(bytes));
}

bool Ledger::share(int gpu, uint64_t bytes, uint64_t id) {
  if (!account_ || !known(gpu)) return true;
  Account& account = **account_;
  const std::lock_guard lock(mutex_);
  {
    // For a moment the memory is charged twice, but never less than once.
    const AccountLock account_lock(account, slot_, kPatience);
    if (!account_lock.held() || !account.shared.add(id, static_cast<uint32_t>(gpu), bytes, slot_))
      return false;
    account.sessions[slot_].memory_used[gpu].fetch_sub(bytes);
  }
  holdings_[id] = {1, true};
  return true;
}

bool Ledger::join(int gpu, uint64_t bytes, uint64_t id) {
  if (!account_ || !known(gpu)) return true;
  Account& account = **account_;
  const std::lock_guard lock(mutex_);
  Holding& holding = holdings_[id];
  if (holding.times == 0) {
    const AccountLock account_lock(account, slot_, kPatience);
    bool in = account_lock.held() && account.shared.join(id, slot_);
    if (account_lock.held() && !in) {
      in = holding.shown =
          fits(gpu, bytes) && account.shared.add(id, static_cast<uint32_t>(gpu), bytes, slot_);
    }
    if (!in) {
      holdings_.erase(id);
      return false;
    }
    if (holding.shown) note_used(gpu, static_cast<int64_t>(bytes));
  }
  ++holding.times;
  return true;
}

void Ledger::leave(int gpu, uint64_t bytes, uint64_t id) {
  if (!account_ || !known(gpu)) return;
  const std::lock_guard lock(mutex_);
  const auto holding = holdings_.find(id);
  if (holding == holdings_.end() || --holding->second.times != 0) return;
  (*account_)->shared.leave(id, slot_);
  if (holding->second.shown) note_used(gpu, -static_cast<int64_t>(bytes));
  holdings_.erase(holding);
}

void Ledger::note_in_host(int gpu, int64_t bytes) {
  if (!page_ || !known(gpu)) return;
  (*page_)->gpus[gpu].memory_in_host.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
  if (bytes > 0)
    (*page_)->gpus[gpu].memory_moved.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
}

void Ledger::note_movable(int gpu, int64_t bytes) {
  if (page_ && known(gpu))
    (*page_)->gpus[gpu].memory_movable.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
}

void Ledger::note_checkpointed(int gpu, int64_t bytes) {
  if (page_ && known(gpu))
    (*page_)->gpus[gpu].memory_checkpointed.fetch_add(static_cast<uint64_t>(bytes),
                                                      std::memory_order_relaxed);
}

uint64_t Ledger::in_host(int gpu) const {
  return page_ && known(gpu) ? (*page_)->gpus[gpu].memory_in_host.load(std::memory_order_relaxed) : 0;
}

uint64_t Ledger::resident(int gpu) const {
  const uint64_t all = used(gpu), moved = in_host(gpu);
  return all > moved ? all - moved : 0;
}

void Ledger::count_refusal() {
  if (page_) (*page_)->over_quota.fetch_add(1, std::memory_order_relaxed);
}

void Ledger::note_refusal(int gpu, uint64_t bytes) {
  count_refusal();
  const auto room = refused_ ? this->room(gpu) : std::nullopt;
  if (room) {
    refused_({.kind = KindId::memory_bytes,
              .gpu = gpu,
              .asked = bytes,
              .used = room->limit - room->free,
              .limit = room->limit});
  }
}

bool Ledger::limited() const {
  return account_ && (*account_)->memory_limited.load(std::memory_order_relaxed) != 0;
}

std::optional<Ledger::Room> Ledger::room(int gpu) const {
  if (!account_ || !known(gpu)) return std::nullopt;
  const uint64_t limit = (*account_)->memory_limit[gpu].load();
  if (limit == 0) return std::nullopt;
  const uint64_t used = used_by_tenant(gpu);
  return Room{limit, used < limit ? limit - used : 0};
}

uint64_t Ledger::used(int gpu) const {
  if (!account_ || !known(gpu)) return 0;
  return (*account_)->sessions[slot_].memory_used[gpu].load() +
         (*account_)->shared.bytes_of(static_cast<uint32_t>(gpu), slot_);
}

uint64_t Ledger::used_by_others(int gpu) const {
  if (!account_ || !known(gpu)) return 0;
  const uint64_t all = used_by_tenant(gpu), own = used(gpu);
  return all - std::min(all, own);
}

uint64_t Ledger::used_by_tenant(int gpu) const {
  const Account& account = **account_;
  const uint32_t slots = std::min<uint32_t>(account.slots.load(), kMaxSessionsPerTenant);
  uint64_t sum = account.shared.bytes(static_cast<uint32_t>(gpu));
  for (uint32_t slot = 0; slot < slots; ++slot) {
    if (__builtin_add_overflow(sum, account.sessions[slot].memory_used[gpu].load(), &sum)) return UINT64_MAX;
  }
  return sum;
}

}  // namespace gpupool::quota
