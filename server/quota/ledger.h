// What one session has of the GPUs' memory, in its tenant's account, and whether it may have more.
//
// Every reservation of a tenant's workers is decided one after the other, and takes effect with a single store, so that a
// worker may be killed at any instruction: what it had goes when poold clears its slot. The caller reserves before the
// device allocates and releases after the device has freed. Any thread. Without an account it counts nothing and refuses
// nothing.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "server/quota/account.h"
#include "server/quota/session_page.h"
#include "server/quota/shared_page.h"

namespace gpupool::quota {

class Ledger {
 public:
  using AccountPage = std::shared_ptr<SharedPage<Account>>;
  using UsePage = std::shared_ptr<SharedPage<SessionPage>>;

  // Either may be null.
  Ledger(AccountPage account, UsePage page, uint32_t slot) : account_(std::move(account)), page_(std::move(page)), slot_(slot) {}
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // False: the tenant would have more than its limit. Waits for the tenant's other workers for at most two seconds.
  bool reserve(int gpu, uint64_t bytes);
  // The device refused what the last reserve() was for: the session never had it. The thread that reserves.
  void undo_peak(int gpu);
  void release(int gpu, uint64_t bytes);
  // Memory that other sessions of the tenant may use too, under an id that nobody else has; it is charged to the tenant once,
  // however many sessions hold it, until the last one has let go. share(): what is reserved is shared from now on; false: too much
  // is. join(): one more has it; it is reserved anew where nobody has it any more, and false as reserve() says. leave(): as
  // often as the session has shared and joined it.
  bool share(int gpu, uint64_t bytes, uint64_t id);
  bool join(int gpu, uint64_t bytes, uint64_t id);
  void leave(int gpu, uint64_t bytes, uint64_t id);
  // Of what is reserved, so much more or less (below zero) is in host memory, or could be moved there.
  void note_in_host(int gpu, int64_t bytes);
  void note_movable(int gpu, int64_t bytes);
  void note_checkpointed(int gpu, int64_t bytes);  // not in what is reserved
  uint64_t in_host(int gpu) const;   // this and the next: of this session
  uint64_t resident(int gpu) const;  // on the GPU
  // A request was refused for good: for monitoring.
  void note_refusal();

  // Whether any GPU's memory is limited for the tenant, as of now.
  bool limited() const;
  struct Room {
    uint64_t limit = 0;  // of the tenant
    uint64_t free = 0;   // of it
  };
  // As of now; nullopt: no limit.
  std::optional<Room> room(int gpu) const;
  uint64_t used(int gpu) const;  // by this session, what it shares included

 private:
  uint64_t used_by_tenant(int gpu) const;
  bool fits(int gpu, uint64_t bytes) const;
  void note_used(int gpu, int64_t bytes);

  struct Holding {
    uint32_t times = 0;
    bool shown = false;  // in the session's page: whoever has made it, and not those who joined
  };
  std::mutex mutex_;
  std::map<uint64_t, Holding> holdings_;  // by id
  const AccountPage account_;
  const UsePage page_;
  const uint32_t slot_;
  uint64_t peak_before_ = 0;  // the last reserve()
};

}  // namespace gpupool::quota
