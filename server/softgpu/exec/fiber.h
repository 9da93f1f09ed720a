// Stacks for CUDA threads, and what the sanitizers want to know about switching between them.
//
// A FiberPool belongs to one pool thread and is used by it alone. Stacks lie in softgpu's reserved range, below each one a
// guard; they are reused last in, first out, so that kernels whose threads rarely block run on few, warm stacks.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "server/softgpu/exec/context.h"

namespace gpupool::softgpu {

#if defined(GPUPOOL_ASAN) || defined(GPUPOOL_TSAN)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// A stack one can switch to: a fiber's, or the pool thread's own.
struct StackContext {
  void* saved = nullptr;  // stack pointer while it does not run
  uint64_t bottom = 0;    // lowest address
  uint64_t bytes = 0;
  void* tsan = nullptr;   // ThreadSanitizer's idea of it
  void* asan = nullptr;   // AddressSanitizer's fake stack while it does not run
};

struct Fiber : StackContext {
  uint32_t size_class = 0;
  bool used = false;  // since its pages were last given back
};

// Leaves `from` for `to`; returns when somebody switches back.
void switch_stacks(StackContext& from, StackContext& to);
// Leaves `from` for good.
[[noreturn]] void leave_stack(StackContext& from, StackContext& to);
// First thing on a new stack.
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

  // The class whose stacks have at least so many bytes; kClasses when there is none so large.
  static constexpr uint32_t kClasses = 12;
  static uint32_t class_for(uint64_t bytes);

  // A fiber that will start at `entry`; null when the host has no memory or mappings left.
  Fiber* take(uint32_t size_class, void (*entry)());
  void give(Fiber* fiber) { free_[fiber->size_class].push_back(fiber); }
  // A fiber that was left in the middle of something: its stack may be marked by the sanitizers. Not while it runs.
  void give_abandoned(Fiber* fiber);
  // Puts a fiber that runs aside, for reclaim() by the pool thread when it is on its own stack again.
  void retire(Fiber* fiber) { retired_.push_back(fiber); }
  void reclaim();
  // Gives the pages of unused stacks back to the kernel.
  void trim();

  // True when the address lies in the guard below this stack.
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
