// The memory of one memory pool: spans mapped on the server, and the blocks in them that stream-ordered
// allocations get.
//
// Freeing and allocating again in a stream needs neither a command nor a mapping. A freed block serves other
// streams once they are ordered behind the free, or once its work is known to be done, as the pool's reuse
// attributes allow. Calls that wait for a stream, an event or a context release memory above the pool's
// threshold. The memory outlives the pool's handle while allocations are live. Spans belong to the context in
// which they were mapped, like all device memory. Thread-safe.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client/memory/block_pool.h"
#include "client/session/call.h"
#include "client/streams/stream_order.h"

namespace gpupool::client {

class PoolMemory : public std::enable_shared_from_this<PoolMemory> {
 public:
  // `max_size`: CUmemPoolProps::maxSize; 0: no limit.
  static std::shared_ptr<PoolMemory> create(Device& device, uint64_t max_size);
  PoolMemory(Device& device, uint64_t max_size) : device_(device), max_size_(max_size) {}

  // cuMemAllocAsync. `about`: the allocation's properties, without its address.
  CUresult allocate(Context& context, CUstream stream, uint64_t bytes, Allocation about,
                    CUdeviceptr* address);
  // Frees an allocation. `point` settled: no work uses the memory any more.
  void free(const Allocation& freed, const FreePoint& point);
  // Releases free spans until at most `keep` bytes are reserved. Includes spans whose work may not be done
  // only if `include_unsettled`; the server waits for that work. Returns false if nothing was released.
  bool trim(uint64_t keep, bool include_unsettled = false);
  void trim_to_threshold();
  // Call when the pool's handle is destroyed: keeps only the spans of live allocations reserved.
  void abandon();
  void forget_context(uint64_t context);

  CUresult get(CUmemPool_attribute attribute, void* value) const;
  CUresult set(CUmemPool_attribute attribute, const void* value);
  // cuMemPoolSetAccess for one device; applies to present and later spans.
  void set_access(const Device& device, CUmemAccess_flags flags);
  CUmemAccess_flags access(int device) const;
  const Device& device() const { return device_; }
  // True if the pool was abandoned and nothing is reserved.
  bool is_unused() const;

 private:
  // Call with mutex_ held.
  uint64_t used() const;
  uint64_t reserved() const;
  void note_high_marks();

  std::optional<uint64_t> reuse(uint64_t context, uint64_t stream, uint64_t bytes,
                                bool own_dependency = false);
  std::optional<FreePoint> best_fit(uint64_t context, uint64_t bytes);
  CUresult grow(Context& context, CUstream stream, uint64_t bytes, const Allocation& about,
                std::optional<uint64_t>* block);
  CUresult map_span(Context& context, uint64_t bytes, const Allocation& about,
                    std::optional<uint64_t>* block);
  void post_access(uint64_t address, uint64_t size, const Device& device, CUmemAccess_flags flags);

  Device& device_;
  const uint64_t max_size_;
  mutable std::mutex mutex_;
  std::map<uint64_t, BlockPool> blocks_;  // by context
  std::map<int, CUmemAccess_flags> access_;
  uint64_t mapping_ = 0;  // bytes of spans that are being mapped
  uint64_t release_threshold_ = 0, used_high_ = 0, reserved_high_ = 0;
  int follow_events_ = 1, opportunistic_ = 1, internal_dependencies_ = 1;
  bool abandoned_ = false;
};

// The free point for a cuMemFreeAsync in the (resolved) stream now.
FreePoint freed_in(const Context& context, CUstream stream);
// Call after a wait for a stream, an event or a context: marks these points as passed, and releases pool
// memory above the thresholds.
void after_wait(const StreamOrder::Points& points);
// Call when the context has been destroyed, with its streams and memory.
void forget_pool_memory_of(uint64_t context);
// Releases the free spans of all pools of the device; false if there were none.
bool trim_pools(const Device& device, bool include_unsettled);

}  // namespace gpupool::client
