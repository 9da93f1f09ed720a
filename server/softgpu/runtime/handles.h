// The table behind every handle that softgpu gives out.
//
// A handle encodes a slot, the slot's generation and the object's kind. A null, wild or stale handle, or one
// of another kind, is rejected by comparison and never dereferenced. Any thread. Look-ups return a reference,
// which keeps the object alive while a call uses it, even if another thread destroys the handle.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "server/softgpu/exec/spin_lock.h"
#include "server/softgpu/runtime/object.h"

namespace gpupool::softgpu {

enum class HandleKind : uint8_t {
  none,
  context,
  stream,
  event,
  module,
  function,
  library,
  kernel,
  linker,
  pool,
  physical_memory,
  graph,
  graph_node,
  graph_exec,
  graph_condition,
  user_object,
  green_context,
  resources,
  array,
  mipmapped_array,
  texture,
  texture_reference,
  surface_reference,
};

class HandleTable {
 public:
  // Returns 0 if the table is full (16 million live handles).
  uint64_t add(HandleKind kind, Ref<Object> object);
  // Returns the handle's object, or null.
  Ref<Object> find(uint64_t handle, HandleKind kind);
  // Like find(), and invalidates the handle.
  Ref<Object> remove(uint64_t handle, HandleKind kind);

  // Returns all live objects of a kind.
  std::vector<Ref<Object>> all(HandleKind kind);

  template <class T>
  uint64_t add(const Ref<T>& object) {
    return add(T::kKind, Ref<Object>(object));
  }
  template <class T>
  Ref<T> find(uint64_t handle) {
    return Ref<T>::adopt(static_cast<T*>(find(handle, T::kKind).release()));
  }
  template <class T>
  Ref<T> remove(uint64_t handle) {
    return Ref<T>::adopt(static_cast<T*>(remove(handle, T::kKind).release()));
  }

  static HandleKind kind_of(uint64_t handle) { return static_cast<HandleKind>(handle >> 56); }

 private:
  struct Slot {
    SpinLock lock;
    uint32_t generation = 0;
    HandleKind kind = HandleKind::none;
    Ref<Object> object;
  };
  static constexpr uint32_t kChunkSlots = 4096;
  static constexpr uint32_t kChunks = 4096;
  using Chunk = std::array<Slot, kChunkSlots>;

  Slot* slot_of(uint64_t handle);

  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
  std::mutex mutex_;  // guards used_ and free_
  uint32_t used_ = 0;
  std::deque<uint32_t> free_;  // first in, first out, to reuse a slot as late as possible
};

}  // namespace gpupool::softgpu
