#include "tests/server/softgpu/jit/fake_executor.h"

#include <pthread.h>

#include <csetjmp>

#include "server/softgpu/exec/device_runtime.h"
#include "tests/support/catch.h"

namespace gpupool::softgpu {
namespace {

struct Running {
  jmp_buf leave_thread, leave_grid;
  FakeResult result;
  std::string printed;
};
Running running;

bool on_this_stack(uint64_t address, uint64_t bytes) {
  static const auto bounds = [] {
    pthread_attr_t attributes;
    void* low = nullptr;
    size_t size = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &low, &size);
    pthread_attr_destroy(&attributes);
    return std::pair(reinterpret_cast<uint64_t>(low), reinterpret_cast<uint64_t>(low) + size);
  }();
  return address >= bounds.first && address <= bounds.second - bytes;
}

}  // namespace

extern "C" {
uint32_t softgpu_barrier(ThreadContext*, uint32_t, uint32_t, BarrierReduction, uint32_t predicate) {
  return predicate;
}
void softgpu_barrier_arrive(ThreadContext*, uint32_t, uint32_t) {}
void softgpu_warp_sync(ThreadContext*, uint32_t) {}
uint32_t softgpu_shuffle(ThreadContext*, ShuffleMode, uint32_t value, uint32_t, uint32_t, uint32_t,
                         uint32_t* in_range) {
  *in_range = 1;
  return value;
}
uint32_t softgpu_vote(ThreadContext* thread, VoteMode mode, uint32_t predicate, uint32_t) {
  return mode == VoteMode::ballot ? predicate << thread->lane : mode == VoteMode::uniform ? 1 : predicate;
}
uint32_t softgpu_match_any(ThreadContext* thread, uint64_t, uint32_t) {
  return 1u << thread->lane;
}
uint32_t softgpu_match_all(ThreadContext*, uint64_t, uint32_t mask, uint32_t* all_equal) {
  *all_equal = 1;
  return mask;
}
void softgpu_warp_call(ThreadContext* thread, WarpCallback function, void* data, uint32_t) {
  void* lanes[kWarpSize] = {};
  lanes[thread->lane] = data;
  function(lanes);
}
// Each block is a cluster of its own.
void softgpu_cluster_arrive(ThreadContext*) {}
void softgpu_cluster_wait(ThreadContext*) {}
uint64_t softgpu_cluster_to_generic(ThreadContext* thread, uint64_t address, uint32_t bytes) {
  const uint64_t rank = address >> kClusterAddressBits, offset = address & ((1u << kClusterAddressBits) - 1);
  if (rank > 1 || offset + bytes > thread->block->total_shared_bytes)
    softgpu_fault(thread, FaultKind::illegal_address, address);
  return thread->block->shared_base + offset;
}
uint64_t softgpu_generic_to_cluster(ThreadContext* thread, uint64_t address) {
  return address - thread->block->shared_base;
}
uint32_t softgpu_cluster_rank(ThreadContext* thread, uint64_t generic) {
  return generic - thread->block->shared_base < thread->block->total_shared_bytes ? 0 : UINT32_MAX;
}
uint64_t softgpu_map_to_rank(ThreadContext*, uint64_t generic, uint32_t) {
  return generic;
}
uint32_t softgpu_active_mask(ThreadContext* thread) {
  return 1u << thread->lane;
}
void softgpu_converge(ThreadContext*, uint32_t) {}
void softgpu_yield(ThreadContext*) {
  if (++running.result.yields > 1000) longjmp(running.leave_grid, 1);
}
void softgpu_exit(ThreadContext*) {
  longjmp(running.leave_thread, 1);
}
void softgpu_check_access(ThreadContext* thread, uint64_t address, uint32_t bytes, uint32_t) {
  bool misaligned = address % bytes != 0;
  if (on_this_stack(address, bytes)) {
    if (misaligned) softgpu_fault(thread, FaultKind::misaligned_address, address);
    return;
  }
  softgpu_fault(thread, misaligned ? FaultKind::misaligned_address : FaultKind::illegal_address, address);
}
void softgpu_fault(ThreadContext*, FaultKind kind, uint64_t address) {
  running.result.fault = kind;
  running.result.address = address;
  longjmp(running.leave_grid, 1);
}
int32_t softgpu_vprintf(ThreadContext*, uint64_t format, uint64_t) {
  running.printed += reinterpret_cast<const char*>(format);
  return 7;
}
void softgpu_assertfail(ThreadContext* thread, uint64_t message, uint64_t, uint32_t, uint64_t, uint64_t) {
  running.printed += reinterpret_cast<const char*>(message);
  softgpu_fault(thread, FaultKind::assertion, 0);
}
uint64_t softgpu_malloc(ThreadContext*, uint64_t bytes) {
  return device_bytes(bytes);
}
void softgpu_free(ThreadContext*, uint64_t) {}
void softgpu_set_condition(ThreadContext*, uint64_t, uint32_t) {}
uint64_t softgpu_clock64(ThreadContext*) {
  static uint64_t ticks = 0;
  return ticks += 10;
}
uint64_t softgpu_global_timer(ThreadContext*) {
  return 0x1122334455667788;
}
}

DeviceRuntime device_runtime_of(const ThreadContext*) {
  return {};
}

std::string printed() {
  return std::exchange(running.printed, {});
}

uint64_t device_bytes(uint64_t size) {
  static uint64_t next = 0, end = 0;
  constexpr uint64_t kChunk = 64 << 20;
  if (!reserve_range()) throw std::runtime_error("the address range is taken");
  size = (size + 255) & ~uint64_t{255};
  if (next == 0 || end - next < size) {
    uint64_t chunk = std::max(size, kChunk);
    next = allocate_host(chunk, 4096).value();
    end = next + chunk;
  }
  return std::exchange(next, next + size);
}

Loaded::Loaded(std::vector<std::string> texts, CompileOptions options) {
  std::vector<std::string_view> views(texts.begin(), texts.end());
  auto result = compile(views, options);
  if (auto* error = std::get_if<CompileError>(&result)) FAIL("does not compile: " << error->message);
  program_ = std::get<std::shared_ptr<const Program>>(result);
  data_ = device_bytes(program_->data_bytes());
  program_->write_data({reinterpret_cast<std::byte*>(data_), program_->data_bytes()}, data_);
}

// Variables that change between setjmp and longjmp must be in memory; the ones that loops change are static.
FakeResult Loaded::run(std::string_view name, const FakeGrid& grid,
                       const std::vector<std::byte>& parameters) const {
  const KernelInfo* kernel = program_->find_kernel(name);
  REQUIRE(kernel);
  auto compiled = program_->code(*kernel);
  if (auto* error = std::get_if<CompileError>(&compiled)) FAIL("no code: " << error->message);
  KernelCode code = std::get<KernelCode>(compiled);
  REQUIRE(code.thread_entry);
  CHECK((code.loop_entry != nullptr) == !kernel->synchronises);
  static BlockContext block;
  static ThreadContext thread;
  block = {};
  running.result = {};
  std::memcpy(block.grid_dim, grid.grid, sizeof grid.grid);
  std::memcpy(block.block_dim, grid.block, sizeof grid.block);
  block.dynamic_shared_bytes = grid.dynamic_shared;
  block.total_shared_bytes = kernel->static_shared_bytes + grid.dynamic_shared;
  block.shared_base = device_bytes(block.total_shared_bytes + 256);
  block.params = device_bytes(parameters.size());
  block.module_data = data_;
  block.grid_id = 77;
  for (uint32_t& size : block.cluster_dim) size = 1;
  std::memcpy(reinterpret_cast<void*>(block.params), parameters.data(), parameters.size());
  const uint32_t blocks = grid.grid[0] * grid.grid[1] * grid.grid[2];
  const uint32_t threads = grid.block[0] * grid.block[1] * grid.block[2];
  static uint32_t b, t;
  if (setjmp(running.leave_grid)) return running.result;
  for (b = 0; b < blocks; ++b) {
    block.block_idx[0] = b % grid.grid[0];
    block.block_idx[1] = b / grid.grid[0] % grid.grid[1];
    block.block_idx[2] = b / grid.grid[0] / grid.grid[1];
    if (code.loop_entry && !grid.by_thread) {
      code.loop_entry(&block, &thread);
      continue;
    }
    for (t = 0; t < threads; ++t) {
      thread = {};
      thread.block = &block;
      thread.tid[0] = t % grid.block[0];
      thread.tid[1] = t / grid.block[0] % grid.block[1];
      thread.tid[2] = t / grid.block[0] / grid.block[1];
      thread.lane = t % kWarpSize;
      thread.warp = t / kWarpSize;
      thread.linear_tid = t;
      if (!setjmp(running.leave_thread)) code.thread_entry(&thread);
    }
  }
  return running.result;
}

std::string compile_error(std::string_view text, CompileOptions options) {
  auto result = compile({&text, 1}, options);
  auto* error = std::get_if<CompileError>(&result);
  return error ? error->message : "";
}

CompileErrorCode compile_error_code(std::string_view text, CompileOptions options) {
  auto result = compile({&text, 1}, options);
  auto* error = std::get_if<CompileError>(&result);
  REQUIRE(error);
  return error->code;
}

}  // namespace gpupool::softgpu
