// Modules, libraries, textures and surfaces that the client has destroyed while earlier launches have not
// been given to the driver yet: commands in the backlog, or parts of a graph's launch (graph_launch.cc).
//
// In CUDA, unloading is ordered behind earlier launches, which may use these objects. So it is postponed
// until the driver has all of them. Code stays charged to the quota until it is unloaded. Executor's thread
// only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "protocol/driver/cuda_header.h"

namespace gpupool::worker {

class PostponedUnloads {
 public:
  static constexpr size_t kMost = 4096;  // further ones are unloaded at once; only this session is affected

  static constexpr uint64_t kNoHandle = ~uint64_t{0};  // for textures and surfaces, which are not charged

  using Unload = std::function<CUresult()>;

  bool empty() const { return waiting_.empty(); }
  bool full() const { return waiting_.size() >= kMost; }
  // `context`: must be current for `unload`; null: any. `handle`: 0 if keep_charge_of() sets it later.
  void add(CUcontext context, uint64_t handle, Unload unload) {
    waiting_.push_back({context, std::move(unload), handle});
  }
  // Call when the handle of the most recently added object is removed from the table. Returns false if no
  // unload was postponed for it, so that its charge must be released now.
  bool keep_charge_of(uint64_t handle);
  // Unloads everything; calls `uncharge` with each handle of code.
  void run_all(const std::function<void(CUcontext)>& enter, const std::function<void(uint64_t)>& uncharge);
  // Unloads the objects of a context that is current, idle and about to be destroyed.
  void run_those_of(CUcontext context, const std::function<void(uint64_t)>& uncharge);

 private:
  struct Waiting {
    CUcontext context;
    Unload unload;
    uint64_t handle;  // 0: keep_charge_of() has not been called yet
  };
  static void run(const Waiting& one, const std::function<void(uint64_t)>& uncharge);
  std::vector<Waiting> waiting_;
};

}  // namespace gpupool::worker
