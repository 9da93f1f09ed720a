// Host memory of the client's program that this process maps too: copies between it and the device need nobody's help and
// nothing on the wire.
//
// The client made it (a memfd) and is not trusted: the size is the sealed one, so that nobody can take pages away under the
// device, and number and total are bounded. Each belongs to the context in which the program allocated it, where it is
// registered with the driver. The executor's thread alone uses it, but for the wait threads that let go of it: that waits
// for the device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "server/worker/contexts.h"
#include "server/worker/waits.h"

namespace gpupool::worker {

constexpr size_t kMaxSharedHostMemory = 4096;  // pieces; their bytes: half of the machine's memory

class SharedHostMemory {
 public:
  SharedHostMemory(const DeviceApi& api, WaitPool& waits) : api_(api), waits_(waits) {}
  SharedHostMemory(const SharedHostMemory&) = delete;
  SharedHostMemory& operator=(const SharedHostMemory&) = delete;

  // With `context` current. The descriptor stays the caller's.
  // `wished`: where kernels should find it, if it is free here; else they find it elsewhere. *device: where; 0: nowhere.
  CUresult add(ContextState& context, uint64_t id, int descriptor, uint64_t size, uint64_t wished, uint64_t* device);
  // Null: no such memory of this context, or these bytes are not in it.
  std::byte* find(const ContextState& context, uint64_t id, uint64_t offset, uint64_t bytes);
  // Can be found no more; goes when the context's work so far is over.
  void release(uint64_t id);
  // The context's work is over, and no wait of it is left.
  void drop_context(const ContextState& context);

 private:
  struct Memory {
    ContextState* context;
    std::byte* start;
    size_t size;
    bool released;
  };
  void unmap(const Memory& memory);  // the context is current

  const DeviceApi& api_;
  WaitPool& waits_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Memory> memories_;
  size_t total_ = 0;
};

}  // namespace gpupool::worker
