// Modules, libraries, textures and surfaces that the client has destroyed while the driver does not have all work that was launched before: commands in the
// backlog, or parts of a graph's launch (graph_launch.cc).
//
// That work may use them: in CUDA, unloading comes behind all work that was launched before. So it is postponed until no such work is left.
// Code stays charged to the quota until it is unloaded. Executor's thread only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "protocol/cuda/cuda_header.h"

namespace gpupool::worker {

class PostponedUnloads {
 public:
  static constexpr size_t kMost = 4096;  // further ones are unloaded at once, at the risk of this session alone

  static constexpr uint64_t kNoHandle = ~uint64_t{0};  // of textures and surfaces: they are not charged

  using Unload = std::function<CUresult()>;

  bool empty() const { return waiting_.empty(); }
  bool full() const { return waiting_.size() >= kMost; }
  // `context`: whose current context `unload` needs; null: any. `handle`: 0 where keep_charge_of() tells it.
  void add(CUcontext context, uint64_t handle, Unload unload) { waiting_.push_back({context, std::move(unload), handle}); }
  // The handle of what was added last has been destroyed. False: nothing was postponed for it, so its charge ends now.
  bool keep_charge_of(uint64_t handle);
  // Unloads all; `uncharge` is called with each handle of code.
  void run_all(const std::function<void(CUcontext)>& enter, const std::function<void(uint64_t)>& uncharge);
  // Unloads what belongs to a context that is idle and about to be destroyed. The context is current.
  void run_those_of(CUcontext context, const std::function<void(uint64_t)>& uncharge);

 private:
  struct Waiting {
    CUcontext context;
    Unload unload;
    uint64_t handle;  // 0: not destroyed yet
  };
  static void run(const Waiting& one, const std::function<void(uint64_t)>& uncharge);
  std::vector<Waiting> waiting_;
};

}  // namespace gpupool::worker
