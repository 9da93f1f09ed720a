// The worker's own work on device memory. It zeroes memory before a client can read it, since what another client left there
// must not be seen (nothing to do where the device does so itself: DeviceApi::zeroes_memory), and copies memory that is moved.
// The executor's thread.
//
// It waits until that is done, on a stream of its own, so that no work of the client can come before it or has to be ordered
// behind it; but for start_clear().
#pragma once
#include <functional>

#include "server/worker/contexts.h"

namespace gpupool::worker {

class Scrubber {
 public:
  Scrubber(const DeviceApi& api, Contexts& contexts) : api_(api), contexts_(contexts) {}

  // Mapped there, and the device may write.
  CUresult clear(CUdeviceptr address, uint64_t size, int device);
  // The same for a new mapping of the current context, without waiting where the session has only this context: every stream waits for it
  // (Contexts::order_all_after_clear), so that kernels that are running hold up neither the executor nor the client.
  CUresult start_clear(CUdeviceptr address, uint64_t size, int device);
  // Mapped nowhere yet.
  CUresult clear_unmapped(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location);
  // Mapped somewhere for as long as `visit` takes, which gets the address.
  CUresult visit_unmapped(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location,
                          const std::function<CUresult(CUdeviceptr)>& visit);
  CUresult clear(CUarray array, const CUDA_ARRAY3D_DESCRIPTOR& shape, int device);
  // Between device memory that is mapped there and ordinary memory.
  CUresult copy_out(std::byte* to, CUdeviceptr from, uint64_t size, int device);
  CUresult copy_in(CUdeviceptr to, const std::byte* from, uint64_t size, int device);
  // Between an array, of the current context, and cuda::array_bytes() of ordinary memory.
  CUresult copy_out(std::byte* to, CUarray from, const CUDA_ARRAY3D_DESCRIPTOR& shape, int device);
  CUresult copy_in(CUarray to, const std::byte* from, const CUDA_ARRAY3D_DESCRIPTOR& shape, int device);
  // The context is about to be destroyed.
  void leave(ContextState& context);

 private:
  // `work` with a stream of a context of the device, which it waits for.
  template <class Work>
  CUresult run(int device, Work&& work);
  CUresult make_stream(ContextState& context);

  const DeviceApi& api_;
  Contexts& contexts_;
};

}  // namespace gpupool::worker
