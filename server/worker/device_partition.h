// Parts of a device's multiprocessors, as green contexts: what poold is told of them, and a session's contexts on the groups that
// poold has given it (quota/partitions.h). Where the device offers none everything is as without them.
//
// A device is divided into as many equal groups as there can be, kMostGroups at most, in one split of all that it has, so
// that a group's number means the same multiprocessors in every worker. What is left over belongs to the last group.
#pragma once
#include <vector>

#include "protocol/cuda/cuda_header.h"
#include "server/quota/partitions.h"
#include "server/worker/session.h"
#include "server/worker/thread_activity.h"

namespace gpupool::worker {

// CUgreenCtx, which not all headers have.
using GreenContext = void*;

class DevicePartition {
 public:
  // Looks the functions up. Any thread afterwards.
  void load(const SymbolLookup& symbol);

  // groups 0: it cannot be divided.
  quota::Partitions::Gpu divide(CUdevice device) const;
  // The primary context on these groups, with streams of its own. Retains the primary context.
  CUresult create(CUdevice device, quota::Groups which, GreenContext* green, CUcontext* context) const;
#if CUDA_VERSION >= 12040
  CUresult create(CUdevice device, CUdevResourceDesc description, GreenContext* green, CUcontext* context) const;
#endif
  void destroy(GreenContext green) const;

 private:
#if CUDA_VERSION >= 12040
  bool split(CUdevice device, std::vector<CUdevResource>& groups, CUdevResource& all, CUdevResource& rest) const;
  DeviceCall<decltype(&cuDeviceGetDevResource)> get_resource_{"cuDeviceGetDevResource"};
  DeviceCall<decltype(&cuDevSmResourceSplitByCount)> split_{"cuDevSmResourceSplitByCount"};
  DeviceCall<decltype(&cuDevResourceGenerateDesc)> describe_{"cuDevResourceGenerateDesc"};
  DeviceCall<decltype(&cuGreenCtxCreate)> create_{"cuGreenCtxCreate"};
  DeviceCall<decltype(&cuGreenCtxDestroy)> destroy_{"cuGreenCtxDestroy"};
  DeviceCall<decltype(&cuCtxFromGreenCtx)> context_of_{"cuCtxFromGreenCtx"};
#endif
};

}  // namespace gpupool::worker
