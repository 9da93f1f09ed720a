// Zeroes device memory before a client can read it: what another client left there must not be seen. Nothing to do where
// the device does so itself (DeviceApi::zeroes_memory). The executor's thread.
//
// Waits until the memory is zero, on a stream of its own, so that no work of the client can come before it or has to be
// ordered behind it.
#pragma once
#include "server/worker/contexts.h"

namespace gpupool::worker {

class Scrubber {
 public:
  Scrubber(const DeviceApi& api, Contexts& contexts) : api_(api), contexts_(contexts) {}

  // Mapped there, and the device may write.
  CUresult clear(CUdeviceptr address, uint64_t size, int device);
  // Mapped nowhere yet.
  CUresult clear_unmapped(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location);
  // The context is about to be destroyed.
  void leave(ContextState& context);

 private:
  CUresult fill(CUdeviceptr address, uint64_t size, CUstream stream);

  const DeviceApi& api_;
  Contexts& contexts_;
};

}  // namespace gpupool::worker
