// The turn to decide about a tenant's memory: a lock among the tenant's workers, in their account.
//
// A worker that is killed with the turn loses it when poold takes its slot back; one that is stopped keeps it, so waiting
// is bounded. Nothing in the account is followed or trusted: a worker that spoils this word keeps its own tenant's sessions
// from getting memory, and no others.
#pragma once
#include <chrono>

#include "server/quota/account.h"

namespace gpupool::quota {

class MemoryTurn {
 public:
  // Waits no longer than `patience`; held() tells.
  MemoryTurn(Account& account, uint32_t slot, std::chrono::milliseconds patience);
  ~MemoryTurn();
  MemoryTurn(const MemoryTurn&) = delete;
  MemoryTurn& operator=(const MemoryTurn&) = delete;
  bool held() const { return held_; }

  // poold's, after the end of the worker that has the slot. Never blocks.
  static void take_from(Account& account, uint32_t slot);

 private:
  Account& account_;
  bool held_ = false;
};

}  // namespace gpupool::quota
