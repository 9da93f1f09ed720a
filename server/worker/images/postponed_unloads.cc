#include "server/worker/images/postponed_unloads.h"

#include <utility>

namespace gpupool::worker {

bool PostponedUnloads::keep_charge_of(uint64_t handle) {
  if (waiting_.empty() || waiting_.back().handle != 0) return false;
  waiting_.back().handle = handle;
  return true;
}

void PostponedUnloads::run(const Waiting& one, const std::function<void(uint64_t)>& uncharge) {
  (void)one.unload();
  if (one.handle != kNoHandle) uncharge(one.handle);
}

void PostponedUnloads::run_all(const std::function<void(CUcontext)>& enter,
                               const std::function<void(uint64_t)>& uncharge) {
  for (const Waiting& one : std::exchange(waiting_, {})) {
    if (one.context) enter(one.context);
    run(one, uncharge);
  }
}

void PostponedUnloads::run_those_of(CUcontext context, const std::function<void(uint64_t)>& uncharge) {
  std::erase_if(waiting_, [&](const Waiting& one) {
    if (one.context != context) return false;
    run(one, uncharge);
    return true;
  });
}

}  // namespace gpupool::worker
