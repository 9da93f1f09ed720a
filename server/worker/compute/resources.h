// Resources of a device, from which green contexts are created. The driver's CUdevResource contains more than
// the program needs, and the driver trusts it when it is passed back; so it stays in the worker, and the
// client gets a number for it.
//
// CUDA has no call that frees a resource, so only the latest kMostKept are remembered. Executor's thread
// only.
#pragma once
#include <deque>
#include <span>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "server/worker/session/session_start.h"
#include "server/worker/session/thread_activity.h"

namespace gpupool::worker {

class Resources {
 public:
  void load(const SymbolLookup& symbol);

#if CUDA_VERSION >= 12040
  // Gets the resource of the context, or of the device if `context` is null.
  CUresult get(CUdevice device, CUcontext context, CUdevResourceType type, CUdevResource* resource) const;
  CUresult split(const CUdevResource& whole, unsigned* groups, unsigned flags, unsigned least,
                 std::vector<CUdevResource>* parts, CUdevResource* remaining) const;
  CUresult describe(std::span<CUdevResource> resources, CUdevResourceDesc* description);

  uint64_t keep(const CUdevResource& resource);
  const CUdevResource* find(uint64_t number) const;  // null: forgotten, or never existed

 private:
  static constexpr size_t kMostKept = 16'384;
  static constexpr size_t kMostDescriptions = 4096;  // the driver has no call to destroy one
  std::deque<CUdevResource> kept_;
  uint64_t first_ = 1;  // number of the oldest entry of kept_
  size_t descriptions_ = 0;
  DeviceCall<decltype(&cuDeviceGetDevResource)> of_device_{"cuDeviceGetDevResource"};
  DeviceCall<decltype(&cuCtxGetDevResource)> of_context_{"cuCtxGetDevResource"};
  DeviceCall<decltype(&cuDevSmResourceSplitByCount)> split_{"cuDevSmResourceSplitByCount"};
  DeviceCall<decltype(&cuDevResourceGenerateDesc)> describe_{"cuDevResourceGenerateDesc"};
#endif
};

}  // namespace gpupool::worker
