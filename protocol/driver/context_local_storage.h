// Values that CUDA's runtime keeps per context: (context, key) -> value, with a destructor that runs when the
// context is destroyed or reset. Almost every runtime call reads one, so get() takes no lock: it probes a
// small hash table under a sequence counter and takes the mutex only while a writer is active. put() and
// remove() are rare (once per runtime and context).
//
// Any thread may call any function. An object is meant to be a global that is never destroyed, because
// runtimes call the driver from exit handlers: it has a constant initialiser and a trivial destructor, and
// never frees its memory. Destructors of values run outside the lock and may call back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

class ContextLocalStorage {
 public:
  using Destructor = void (*)(CUcontext context, void* key, void* value);

  constexpr ContextLocalStorage() = default;
  ContextLocalStorage(const ContextLocalStorage&) = delete;
  ContextLocalStorage& operator=(const ContextLocalStorage&) = delete;

  // Replaces an earlier value of the key, whose destructor does not run. False: out of memory.
  bool put(CUcontext context, void* key, void* value, Destructor destructor);
  // False: the key has no value in this context.
  bool get(CUcontext context, void* key, void** value) const;
  // Forgets the value without running its destructor. False: there was no value.
  bool remove(CUcontext context, void* key);
  // Removes all values of a context and runs their destructors. For destruction and reset of the context.
  void destroy_context(CUcontext context);

 private:
  enum class State : uint8_t { empty, used, removed };
  struct Slot {
    std::atomic<CUcontext> context{nullptr};
    std::atomic<void*> key{nullptr};
    std::atomic<void*> value{nullptr};
    std::atomic<Destructor> destructor{nullptr};
    std::atomic<State> state{State::empty};
  };
  struct Table {
    Slot* slots = nullptr;
    size_t size = 0;  // a power of two
    Table* outgrown = nullptr;
  };
  struct Writer;

  static Slot* find(const Table* table, CUcontext context, void* key);
  bool make_room();

  mutable std::mutex mutex_;
  std::atomic<uint64_t> sequence_{0};   // odd while a writer is active
  std::atomic<Table*> table_{nullptr};  // outgrown tables are kept for readers that still probe them
  size_t filled_ = 0;                   // slots that are not empty
};

}  // namespace gpupool::cuda
