#include "server/softgpu/exec/fiber.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "server/softgpu/memory/address_space.h"

#if defined(GPUPOOL_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(GPUPOOL_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace gpupool::softgpu {
namespace {

#if defined(GPUPOOL_TSAN)
constexpr uint32_t kStacksPerSlab = 8;
#else
constexpr uint32_t kStacksPerSlab = 32;
#endif

SOFTGPU_LEAVES_STACK void before_switch([[maybe_unused]] StackContext* from,
                                        [[maybe_unused]] StackContext& to) {
#if defined(GPUPOOL_ASAN)
  __sanitizer_start_switch_fiber(from != nullptr ? &from->asan : nullptr, reinterpret_cast<void*>(to.bottom),
                                 to.bytes);
#endif
#if defined(GPUPOOL_TSAN)
  __tsan_switch_to_fiber(to.tsan, 0);
#endif
}

SOFTGPU_LEAVES_STACK void after_switch([[maybe_unused]] StackContext& now) {
#if defined(GPUPOOL_ASAN)
  __sanitizer_finish_switch_fiber(now.asan, nullptr, nullptr);
#endif
}

}  // namespace

// Uses MADV_GUARD_INSTALL where the kernel has it (Linux 6.13), which needs no mapping of its own: a process
// is limited to about 65,000 mappings (vm.max_map_count). Else makes the pages inaccessible.
bool install_guard(uint64_t address, uint64_t bytes) {
  constexpr int kGuardInstall = 102;  // MADV_GUARD_INSTALL
  void* at = reinterpret_cast<void*>(address);
  return madvise(at, bytes, kGuardInstall) == 0 || mprotect(at, bytes, PROT_NONE) == 0;
}

SOFTGPU_LEAVES_STACK void switch_stacks(StackContext& from, StackContext& to) {
  before_switch(&from, to);
  softgpu_context_switch(&from.saved, to.saved);
  after_switch(from);
}

SOFTGPU_LEAVES_STACK void leave_stack(StackContext& from, StackContext& to) {
  static_cast<void>(from);
  before_switch(nullptr, to);
  softgpu_context_restore(to.saved);
}

SOFTGPU_LEAVES_STACK void arrived_on_new_stack() {
#if defined(GPUPOOL_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

uint32_t FiberPool::class_for(uint64_t bytes) {
  if (bytes <= kSmallestStack) return 0;
  return std::min<uint32_t>(kClasses, static_cast<uint32_t>(std::bit_width((bytes - 1) / kSmallestStack)));
}

FiberPool::~FiberPool() {
  reclaim();
#if defined(GPUPOOL_TSAN)
  for (auto& fiber : all_) {
    if (fiber->tsan != nullptr) __tsan_destroy_fiber(fiber->tsan);
  }
#endif
  for (const Slab& slab : slabs_) free_host(slab.address, slab.bytes);
}

bool FiberPool::grow(uint32_t size_class) {
  const uint64_t stack = uint64_t{kSmallestStack} << size_class;
  const uint64_t bytes = kStacksPerSlab * (stack + kGuardBytes);
  const auto slab = allocate_host(bytes, page_bytes());
  if (!slab) return false;
  // A thread that uses 4 KiB must not cost a 2 MiB page.
  madvise(reinterpret_cast<void*>(*slab), bytes, MADV_NOHUGEPAGE);
  slabs_.push_back({*slab, bytes});
  for (uint32_t i = 0; i < kStacksPerSlab; ++i) {
    const uint64_t guard = *slab + i * (stack + kGuardBytes);
    if (!install_guard(guard, kGuardBytes)) return i > 0;
    auto fiber = std::make_unique<Fiber>();
    fiber->bottom = guard + kGuardBytes;
    // Stacks a power of two apart would compete for the same cache sets, so each starts at a different line
    // of its first page.
    fiber->bytes = stack - (all_.size() % 12) * 320 / 64 * 64;
    fiber->size_class = size_class;
    free_[size_class].push_back(fiber.get());
    all_.push_back(std::move(fiber));
  }
  return true;
}

Fiber* FiberPool::acquire(uint32_t size_class, void (*entry)()) {
  auto& list = free_[size_class];
  if (list.empty() && !grow(size_class)) return nullptr;
  if (list.empty()) return nullptr;
  Fiber* fiber = list.back();
  list.pop_back();
  fiber->used = true;
  fiber->saved = make_context(fiber->bottom + fiber->bytes, entry);
  fiber->asan = nullptr;
#if defined(GPUPOOL_TSAN)
  if (fiber->tsan == nullptr) fiber->tsan = __tsan_create_fiber(0);
#endif
  return fiber;
}

void FiberPool::return_abandoned(Fiber* fiber) {
#if defined(GPUPOOL_ASAN)
  __asan_unpoison_memory_region(reinterpret_cast<void*>(fiber->bottom), fiber->bytes);
#endif
#if defined(GPUPOOL_TSAN)
  __tsan_destroy_fiber(fiber->tsan);
  fiber->tsan = nullptr;
#endif
  release(fiber);
}

void FiberPool::reclaim() {
  for (Fiber* fiber : retired_) return_abandoned(fiber);
  retired_.clear();
}

void FiberPool::trim() {
  for (auto& list : free_) {
    for (Fiber* fiber : list) {
      if (!fiber->used) continue;
      discard_host(fiber->bottom, (uint64_t{kSmallestStack} << fiber->size_class));
      fiber->used = false;
    }
  }
}

}  // namespace gpupool::softgpu
