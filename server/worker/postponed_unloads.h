// Modules and libraries that the client has unloaded while a launch of a graph has parts that the driver does not have yet (graph_launch.cc).
//
// These parts may use the code: in CUDA, unloading comes behind all work that was launched before. So it is postponed until no launch has further
// parts. The code stays charged to the quota until it is unloaded. Executor's thread only.
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

  using Unload = std::function<void()>;

  bool empty() const { return waiting_.empty(); }
  bool full() const { return waiting_.size() >= kMost; }
  // `context`: whose current context `unload` needs; null: any.
  void add(CUcontext context, Unload unload) { waiting_.push_back({context, std::move(unload)}); }
  // The handle of what was added last has been destroyed. False: nothing was postponed for it, so its charge ends now.
  bool keep_charge_of(uint64_t handle);
  // Unloads all; `uncharge` is called with each handle.
  void run_all(const std::function<void(CUcontext)>& enter, const std::function<void(uint64_t)>& uncharge);
  // Unloads what belongs to a context that is idle and about to be destroyed. The context is current.
  void run_those_of(CUcontext context, const std::function<void(uint64_t)>& uncharge);

 private:
  struct Waiting {
    CUcontext context;
    Unload unload;
    uint64_t handle = 0;  // 0: not destroyed yet
  };
  std::vector<Waiting> waiting_;
};

}  // namespace gpupool::worker
