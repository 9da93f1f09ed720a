// Host memory of the client's program that this process maps as well, so that copies between it and the
// device need neither the client nor the connection.
//
// The client created the memory (a memfd) and is not trusted: the file must be sealed against shrinking, so
// that no process can remove pages while the device uses them, and the number and total size are limited.
// Each piece of memory belongs to the context in which the program allocated it, and is registered with the
// driver there. Executor's thread, except that wait threads unregister memory, because that waits for the
// device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "server/worker/session/contexts.h"
#include "server/worker/session/waits.h"

namespace gpupool::worker {

// Number of pieces; their total size is limited to half of the host's memory.
constexpr size_t kMaxSharedHostMemory = 4096;

class SharedHostMemory {
 public:
  SharedHostMemory(const DeviceApi& api, WaitPool& waits) : api_(api), waits_(waits) {}
  SharedHostMemory(const SharedHostMemory&) = delete;
  SharedHostMemory& operator=(const SharedHostMemory&) = delete;

  // Maps and registers memory; `context` must be current, and the caller keeps the descriptor. `preferred`:
  // the address at which kernels should find it, if it is free in this process. *device: the address for
  // kernels; 0: none.
  CUresult add(ContextState& context, uint64_t id, int descriptor, uint64_t size, uint64_t preferred,
               uint64_t* device);
  // Returns the address of the bytes, or null if they are not in memory `id` of this context.
  std::byte* find(const ContextState& context, uint64_t id, uint64_t offset, uint64_t bytes);
  // Makes the memory unavailable at once, and unmaps it when the context's present work is done.
  void release(uint64_t id);
  // Unmaps the context's memory; the context's work must be done, and no wait thread may be using it.
  void drop_context(const ContextState& context);

 private:
  struct Memory {
    ContextState* context;
    std::byte* start;
    size_t size;
    bool released;
  };
  void unmap(const Memory& memory);  // the context must be current

  const DeviceApi& api_;
  WaitPool& waits_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Memory> memories_;
  size_t total_ = 0;
};

}  // namespace gpupool::worker
