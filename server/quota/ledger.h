// Charges one session's GPU memory to its tenant's account, and decides whether it may have more. Used in the
// worker; any thread.
//
// Reservations of a tenant's workers are serialized, and each takes effect with a single store, so a worker
// may be killed at any instruction: poold then clears its slot. The caller reserves before the device
// allocates, and releases after the device has freed. Without an account nothing is counted or refused.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "server/quota/account.h"
#include "server/quota/refusal.h"
#include "server/quota/session_page.h"
#include "server/quota/shared_page.h"

namespace gpupool::quota {

class Ledger {
 public:
  using AccountPage = std::shared_ptr<SharedPage<Account>>;
  using UsePage = std::shared_ptr<SharedPage<SessionPage>>;

  // `account` and `page` may be null.
  Ledger(AccountPage account, UsePage page, uint32_t slot)
      : account_(std::move(account)), page_(std::move(page)), slot_(slot) {}
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Returns false if the tenant would exceed its limit. Waits for the tenant's other workers for at most 2 s,
  // then returns false, too.
  bool reserve(int gpu, uint64_t bytes);
  // Restores the peak after the device has refused the memory of the last reserve(). Called on the thread
  // that reserved.
  void undo_peak(int gpu);
  void release(int gpu, uint64_t bytes);
  // Memory that other sessions of the tenant may use too, under a unique id. It is charged to the tenant
  // once, until the last session has left it. share() makes reserved memory shared; false: there is too much
  // shared memory. join() adds this session; if no session has the memory any more, it is reserved anew, and
  // false means the same as for reserve(). leave() must be called as often as share() and join() have
  // succeeded.
  bool share(int gpu, uint64_t bytes, uint64_t id);
  bool join(int gpu, uint64_t bytes, uint64_t id);
  void leave(int gpu, uint64_t bytes, uint64_t id);
  // Counts `bytes` more (negative: less) of the reserved memory as being in host memory, or as movable to it.
  void note_in_host(int gpu, int64_t bytes);
  void note_movable(int gpu, int64_t bytes);
  void note_checkpointed(int gpu, int64_t bytes);  // not part of the reserved memory
  uint64_t in_host(int gpu) const;                 // of this session
  uint64_t resident(int gpu) const;                // of this session, on the GPU
  // Counts a refused request, for monitoring. note_refusal() also tells the listener; `bytes`: as many more
  // were asked for (0: not known).
  void count_refusal();
  void note_refusal(int gpu, uint64_t bytes);
  // Called before other threads use the ledger. `refused` is called on the thread of the request.
  void on_refusal(RefusalListener refused) { refused_ = std::move(refused); }

  // True if any GPU's memory is limited for the tenant at present.
  bool limited() const;
  struct Room {
    uint64_t limit = 0;  // of the tenant
    uint64_t free = 0;   // remaining part of `limit`
  };
  // At present; nullopt: no limit.
  std::optional<Room> room(int gpu) const;
  uint64_t used(int gpu) const;            // by this session, including what it shares
  uint64_t used_by_others(int gpu) const;  // by the tenant's other sessions

 private:
  uint64_t used_by_tenant(int gpu) const;
  bool fits(int gpu, uint64_t bytes) const;
  void note_used(int gpu, int64_t bytes);

  struct Holding {
    uint32_t times = 0;
    bool shown = false;  // counted in the page of the session that reserved it, not of those that joined
  };
  std::mutex mutex_;
  std::map<uint64_t, Holding> holdings_;  // by id
  const AccountPage account_;
  const UsePage page_;
  const uint32_t slot_;
  RefusalListener refused_;
  uint64_t peak_before_ = 0;  // peak before the last reserve()
};

}  // namespace gpupool::quota
