// Partitions of a device's multiprocessors by green contexts: describes the device's groups for poold, and
// creates a session's contexts on the groups that poold has assigned (quota/partitions.h). Sessions on
// devices without green contexts use the whole device.
//
// A device is divided in a single split into the largest possible number of equal groups, at most
// kMostGroups, so that a group number means the same multiprocessors in every worker. Left-over
// multiprocessors belong to the last group.
#pragma once
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "server/quota/partitions.h"
#include "server/worker/session/session_start.h"
#include "server/worker/session/thread_activity.h"

namespace gpupool::worker {

// CUgreenCtx, which older CUDA headers lack.
using GreenContext = void*;

class DevicePartition {
 public:
  // Looks up the driver functions. Afterwards all functions may be called from any thread.
  void load(const SymbolLookup& symbol);

  // Returns 0 groups if the device cannot be divided.
  quota::Partitions::Gpu divide(CUdevice device) const;
  // Creates a green context on these groups, with a default stream of its own. Retains the primary context.
  CUresult create(CUdevice device, quota::Groups which, GreenContext* green, CUcontext* context) const;
#if CUDA_VERSION >= 12040
  CUresult create(CUdevice device, CUdevResourceDesc description, GreenContext* green,
                  CUcontext* context) const;
#endif
  void destroy(GreenContext green) const;

 private:
#if CUDA_VERSION >= 12040
  bool split(CUdevice device, std::vector<CUdevResource>& groups, CUdevResource& all,
             CUdevResource& rest) const;
  DeviceCall<decltype(&cuDeviceGetDevResource)> get_resource_{"cuDeviceGetDevResource"};
  DeviceCall<decltype(&cuDevSmResourceSplitByCount)> split_{"cuDevSmResourceSplitByCount"};
  DeviceCall<decltype(&cuDevResourceGenerateDesc)> describe_{"cuDevResourceGenerateDesc"};
  DeviceCall<decltype(&cuGreenCtxCreate)> create_{"cuGreenCtxCreate"};
  DeviceCall<decltype(&cuGreenCtxDestroy)> destroy_{"cuGreenCtxDestroy"};
  DeviceCall<decltype(&cuCtxFromGreenCtx)> context_of_{"cuCtxFromGreenCtx"};
#endif
};

}  // namespace gpupool::worker
