// Stacks for CUDA threads, and the sanitizer annotations for switching between them.
//
// A FiberPool belongs to one pool thread and is used by it alone. Stacks lie in softgpu's reserved range with
// a guard below each; they are reused last in, first out, so that kernels whose threads rarely block run on
// few, cache-warm stacks.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "common/sanitizers.h"
#include "server/softgpu/exec/context.h"

namespace gpupool::softgpu {

// A stack that can be switched to: a fiber's, or the pool thread's own.
struct StackContext {
  void* saved = nullptr;  // stack pointer while not running
  uint64_t bottom = 0;    // lowest address
  uint64_t bytes = 0;
  void* tsan = nullptr;  // ThreadSanitizer's fiber handle
  void* asan = nullptr;  // AddressSanitizer's fake stack while not running
};

struct Fiber : StackContext {
  uint32_t size_class = 0;
  bool used = false;  // true if used since its pages were last returned to the kernel
};

// Switches from `from` to `to`; returns when another context switches back.
void switch_stacks(StackContext& from, StackContext& to);
// Leaves `from` for good.
[[noreturn]] void leave_stack(StackContext& from, StackContext& to);
// Must be the first call on a new stack.
void arrived_on_new_stack();

// Makes pages of allocate_host memory inaccessible.
bool install_guard(uint64_t address, uint64_t bytes);

class FiberPool {
 public:
  static constexpr uint32_t kSmallestStack = kSanitized ? 128 << 10 : 64 << 10;  // bytes
  static constexpr uint64_t kGuardBytes = 64 << 10;

  FiberPool() = default;
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  // Returns the smallest class whose stacks have at least `bytes` bytes, or kClasses if none is that large.
  static constexpr uint32_t kClasses = 12;
  static uint32_t class_for(uint64_t bytes);

  // Returns a fiber that starts at `entry`, or null if the host has no memory or mappings left.
  Fiber* acquire(uint32_t size_class, void (*entry)());
  void release(Fiber* fiber) { free_[fiber->size_class].push_back(fiber); }
  // Takes back a fiber that was left in the middle of its work; clears the sanitizers' marks on its stack.
  // The fiber must not be running.
  void return_abandoned(Fiber* fiber);
  // Sets a running fiber aside until the pool thread is on its own stack again and calls reclaim().
  void retire(Fiber* fiber) { retired_.push_back(fiber); }
  void reclaim();
  // Returns the pages of unused stacks to the kernel.
  void trim();

  // Returns true if the address lies in the guard below this stack.
  static bool in_guard(const Fiber& fiber, uint64_t address) {
    return address < fiber.bottom && address >= fiber.bottom - kGuardBytes;
  }

 private:
  struct Slab {
    uint64_t address, bytes;
  };
  bool grow(uint32_t size_class);

  std::vector<Fiber*> free_[kClasses];
  std::vector<Fiber*> retired_;
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Slab> slabs_;
};

}  // namespace gpupool::softgpu
