// A lock in a tenant's account, for its workers' decisions about memory. Ledger uses it in workers.
//
// poold releases the lock of a worker that was killed. A stopped worker keeps it, so waiting is limited. A
// worker that corrupts the lock only keeps its own tenant's sessions from getting memory.
#pragma once
#include <chrono>

#include "server/quota/account.h"

namespace gpupool::quota {

class AccountLock {
 public:
  // Waits for at most `patience`; then held() may be false.
  AccountLock(Account& account, uint32_t slot, std::chrono::milliseconds patience);
  ~AccountLock();
  AccountLock(const AccountLock&) = delete;
  AccountLock& operator=(const AccountLock&) = delete;
  bool held() const { return held_; }

  // Called by poold after the end of the slot's worker. Never blocks.
  static void release_for_dead(Account& account, uint32_t slot);

 private:
  Account& account_;
  bool held_ = false;
};

}  // namespace gpupool::quota
