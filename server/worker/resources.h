// A device's resources as green contexts are made of them. What the driver says of one holds more than the program needs, and the driver
// believes what it is given back; so it stays here, and the client has its number.
//
// Nobody says when a resource is no longer of use: the oldest are forgotten. The executor's thread alone uses it.
#pragma once
#include <deque>
#include <span>
#include <vector>

#include "protocol/cuda/cuda_header.h"
#include "server/worker/session.h"
#include "server/worker/thread_activity.h"

namespace gpupool::worker {

class Resources {
 public:
  void load(const SymbolLookup& symbol);

#if CUDA_VERSION >= 12040
  // Of the device, or of the context where there is one.
  CUresult get(CUdevice device, CUcontext context, CUdevResourceType type, CUdevResource* resource) const;
  CUresult split(const CUdevResource& whole, unsigned* groups, unsigned flags, unsigned least, std::vector<CUdevResource>* parts,
                 CUdevResource* remaining) const;
  CUresult describe(std::span<CUdevResource> resources, CUdevResourceDesc* description);

  uint64_t keep(const CUdevResource& resource);
  const CUdevResource* find(uint64_t number) const;  // null: forgotten, or never was

 private:
  static constexpr size_t kMostKept = 16'384;
  static constexpr size_t kMostDescriptions = 4096;  // the driver has no call to end one
  std::deque<CUdevResource> kept_;
  uint64_t first_ = 1;  // number of the oldest
  size_t descriptions_ = 0;
  DeviceCall<decltype(&cuDeviceGetDevResource)> of_device_{"cuDeviceGetDevResource"};
  DeviceCall<decltype(&cuCtxGetDevResource)> of_context_{"cuCtxGetDevResource"};
  DeviceCall<decltype(&cuDevSmResourceSplitByCount)> split_{"cuDevSmResourceSplitByCount"};
  DeviceCall<decltype(&cuDevResourceGenerateDesc)> describe_{"cuDevResourceGenerateDesc"};
#endif
};

}  // namespace gpupool::worker
