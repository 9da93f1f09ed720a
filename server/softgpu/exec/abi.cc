// The functions that generated code calls for synchronisation and memory checks. See abi.h.
#include "server/softgpu/exec/abi.h"

#include <time.h>

#include "server/softgpu/exec/block_run.h"
#include "server/softgpu/memory/address_space.h"

using namespace gpupool::softgpu;

extern "C" {

uint32_t softgpu_barrier(ThreadContext* thread, uint32_t barrier, uint32_t thread_count,
                         BarrierReduction reduction, uint32_t predicate) {
  return BlockRun::of(thread).barrier(thread, barrier, thread_count, reduction, predicate);
}

void softgpu_barrier_arrive(ThreadContext* thread, uint32_t barrier, uint32_t thread_count) {
  BlockRun::of(thread).barrier_arrive(barrier, thread_count);
}

void softgpu_warp_sync(ThreadContext* thread, uint32_t member_mask) {
  BlockRun::of(thread).collective(thread, Warp::Kind::sync, 0, member_mask);
}

uint32_t softgpu_shuffle(ThreadContext* thread, ShuffleMode mode, uint32_t value, uint32_t b, uint32_t c,
                         uint32_t member_mask, uint32_t* in_range) {
  auto& block = BlockRun::of(thread);
  if (block.in_loops()) block.end_with_fault(FaultKind::illegal_instruction, 0);
  Warp& warp = block.warp_of(thread);
  const uint32_t lane = thread->lane;
  warp.value[lane] = value;
  warp.b[lane] = b;
  warp.c[lane] = c;
  block.collective(thread, Warp::Kind::shuffle, static_cast<uint8_t>(mode), member_mask);
  if (in_range != nullptr) *in_range = warp.flag[lane];
  return warp.result[lane];
}

uint32_t softgpu_vote(ThreadContext* thread, VoteMode mode, uint32_t predicate, uint32_t member_mask) {
  auto& block = BlockRun::of(thread);
  if (block.in_loops()) block.end_with_fault(FaultKind::illegal_instruction, 0);
  Warp& warp = block.warp_of(thread);
  warp.value[thread->lane] = predicate;
  block.collective(thread, Warp::Kind::vote, static_cast<uint8_t>(mode), member_mask);
  return warp.result[thread->lane];
}

uint32_t softgpu_match_any(ThreadContext* thread, uint64_t value, uint32_t member_mask) {
  auto& block = BlockRun::of(thread);
  if (block.in_loops()) block.end_with_fault(FaultKind::illegal_instruction, 0);
  Warp& warp = block.warp_of(thread);
  warp.value[thread->lane] = value;
  block.collective(thread, Warp::Kind::match_any, 0, member_mask);
  return warp.result[thread->lane];
}

uint32_t softgpu_match_all(ThreadContext* thread, uint64_t value, uint32_t member_mask, uint32_t* all_equal) {
  auto& block = BlockRun::of(thread);
  if (block.in_loops()) block.end_with_fault(FaultKind::illegal_instruction, 0);
  Warp& warp = block.warp_of(thread);
  warp.value[thread->lane] = value;
  block.collective(thread, Warp::Kind::match_all, 0, member_mask);
  if (all_equal != nullptr) *all_equal = warp.flag[thread->lane];
  return warp.result[thread->lane];
}

void softgpu_warp_call(ThreadContext* thread, WarpCallback function, void* data, uint32_t member_mask) {
  auto& block = BlockRun::of(thread);
  if (block.in_loops()) block.end_with_fault(FaultKind::illegal_instruction, 0);
  block.warp_of(thread).value[thread->lane] = reinterpret_cast<uintptr_t>(data);
  block.collective(thread, Warp::Kind::call, 0, member_mask, function);
}

uint32_t softgpu_active_mask(ThreadContext* thread) {
  return BlockRun::of(thread).active_mask(thread, reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
}

void softgpu_converge(ThreadContext* thread, uint32_t point) {
  BlockRun::of(thread).converge(thread, point);
}

void softgpu_cluster_arrive(ThreadContext* thread) {
  BlockRun::of(thread).cluster_arrive(thread);
}

void softgpu_cluster_wait(ThreadContext* thread) {
  BlockRun::of(thread).cluster_wait(thread);
}

uint64_t softgpu_cluster_to_generic(ThreadContext* thread, uint64_t address, uint32_t bytes) {
  auto& block = BlockRun::of(thread);
  const uint64_t rank = address >> kClusterAddressBits, offset = address & ((1u << kClusterAddressBits) - 1);
  const uint64_t own = thread->block->shared_base, size = thread->block->total_shared_bytes;
  const uint64_t base =
      rank == 0
          ? own
          : block.cluster_window(rank > kMaxClusterBlocks ? UINT32_MAX : static_cast<uint32_t>(rank - 1));
  if (base == 0 || bytes > size || offset > size - bytes)
    block.end_with_fault(FaultKind::illegal_address, own + address);
  return base + offset;
}

uint32_t softgpu_cluster_rank(ThreadContext* thread, uint64_t generic) {
  const uint32_t rank = BlockRun::of(thread).cluster_rank_of(generic);
  const uint32_t* dim = thread->block->cluster_dim;
  return rank < dim[0] * dim[1] * dim[2] ? rank : UINT32_MAX;
}

uint64_t softgpu_generic_to_cluster(ThreadContext* thread, uint64_t address) {
  const uint32_t rank = softgpu_cluster_rank(thread, address);
  if (rank == thread->block->cluster_rank || rank == UINT32_MAX) return address - thread->block->shared_base;
  return uint64_t{rank + 1} << kClusterAddressBits | (address - BlockRun::of(thread).cluster_window(rank));
}

uint64_t softgpu_map_to_rank(ThreadContext* thread, uint64_t generic, uint32_t rank) {
  auto& block = BlockRun::of(thread);
  const uint64_t base = block.cluster_window(rank);
  if (base == 0) block.end_with_fault(FaultKind::illegal_address, generic);
  return generic - thread->block->shared_base + base;
}

void softgpu_yield(ThreadContext* thread) {
  BlockRun::of(thread).yield(thread);
}

void softgpu_exit(ThreadContext* thread) {
  BlockRun::of(thread).exit_thread(thread);
}

void softgpu_check_access(ThreadContext* thread, uint64_t address, uint32_t bytes, uint32_t is_store) {
  if (in_range(address, bytes)) {
    if (bytes == 0 || address % bytes == 0) return;
    BlockRun::of(thread).end_with_fault(FaultKind::misaligned_address, address);
  }
  if (is_registered_host(address, bytes, is_store != 0)) return;
  BlockRun::of(thread).end_with_fault(FaultKind::illegal_address, address);
}

void softgpu_fault(ThreadContext* thread, FaultKind kind, uint64_t address) {
  BlockRun::of(thread).end_with_fault(kind, address);
}

uint64_t softgpu_clock64(ThreadContext*) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
}

uint64_t softgpu_global_timer(ThreadContext*) {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // extern "C"
