#include "server/softgpu/exec/device_runtime.h"

#include <optional>

#include "server/softgpu/exec/child_launches.h"

namespace gpupool::softgpu {

namespace {

using Kind = ChildLaunches::Kind;

uint32_t finish(ThreadContext* thread, RuntimeError error) {
  if (error != RuntimeError::success) thread->runtime_error = static_cast<uint32_t>(error);
  return static_cast<uint32_t>(error);
}

// Stores a result at the address that the kernel passed.
template <class T>
uint32_t store_result(ThreadContext* thread, uint64_t to, std::optional<T> value,
                      RuntimeError otherwise = RuntimeError::invalid_value) {
  if (to == 0 || !value) return finish(thread, to == 0 ? RuntimeError::invalid_value : otherwise);
  softgpu_check_access(thread, to, sizeof(T), 1);
  *reinterpret_cast<T*>(to) = *value;
  return 0;
}

template <class Body>
uint32_t with_launches(ThreadContext* thread, const Body& body) {
  const DeviceRuntime runtime = device_runtime_of(thread);
  return finish(thread,
                runtime.launches ? body(*runtime.launches, *runtime.services) : RuntimeError::too_deep);
}

uint32_t create(ThreadContext* thread, Kind kind, uint64_t to, bool right_flags) {
  if (to == 0 || !right_flags) return finish(thread, RuntimeError::invalid_value);
  uint64_t handle = 0;
  const uint32_t error = with_launches(
      thread, [&](ChildLaunches& launches, const auto&) { return launches.create(kind, &handle); });
  return error != 0 ? error : store_result<uint64_t>(thread, to, handle);
}

uint32_t destroy(ThreadContext* thread, Kind kind, uint64_t handle) {
  return with_launches(thread,
                       [&](ChildLaunches& launches, const auto&) { return launches.destroy(kind, handle); });
}

// Child work runs in the order of the calls, so an event is always complete before work that could wait for
// it; checking the handles is all there is to do.
uint32_t use_event(ThreadContext* thread, uint64_t stream, uint64_t event, bool right_flags) {
  if (!right_flags) return finish(thread, RuntimeError::invalid_value);
  return with_launches(thread, [&](ChildLaunches& launches, const auto&) {
    const bool known = launches.knows(Kind::stream, stream) && launches.knows(Kind::event, event);
    return known ? RuntimeError::success : RuntimeError::invalid_handle;
  });
}

bool is_grid_group(const ThreadContext* thread, uint64_t group) {
  return group != 0 && group == thread->block->grid_workspace;
}

uint64_t blocks_of(const BlockContext& block) {
  return uint64_t{block.grid_dim[0]} * block.grid_dim[1] * block.grid_dim[2];
}

}  // namespace

extern "C" {

uint32_t softgpu_cudaPeekAtLastError(ThreadContext* thread) {
  return thread->runtime_error;
}

uint32_t softgpu_cudaGetLastError(ThreadContext* thread) {
  const uint32_t error = thread->runtime_error;
  thread->runtime_error = 0;
  return error;
}

uint32_t softgpu_cudaRuntimeGetVersion(ThreadContext* thread, uint64_t version) {
  return store_result<int>(thread, version, device_runtime_of(thread).services->version());
}

uint32_t softgpu_cudaGetDevice(ThreadContext* thread, uint64_t device) {
  return store_result<int>(thread, device, device_runtime_of(thread).services->device());
}

uint32_t softgpu_cudaGetDeviceCount(ThreadContext* thread, uint64_t count) {
  return store_result<int>(thread, count, device_runtime_of(thread).services->device_count());
}

uint32_t softgpu_cudaDeviceGetAttribute(ThreadContext* thread, uint64_t value, uint32_t attribute,
                                        uint32_t device) {
  const KernelServices& services = *device_runtime_of(thread).services;
  if (device >= static_cast<uint32_t>(services.device_count()))
    return finish(thread, RuntimeError::invalid_device);
  return store_result(thread, value,
                      services.device_attribute(static_cast<int>(device), static_cast<int>(attribute)));
}

uint32_t softgpu_cudaDeviceGetLimit(ThreadContext* thread, uint64_t value, uint32_t limit) {
  return store_result(thread, value, device_runtime_of(thread).services->limit(static_cast<int>(limit)),
                      RuntimeError::unsupported_limit);
}

uint32_t softgpu_cudaDeviceGetCacheConfig(ThreadContext* thread, uint64_t config) {
  return store_result<int>(thread, config, 0);  // cudaFuncCachePreferNone
}

uint32_t softgpu_cudaDeviceGetSharedMemConfig(ThreadContext* thread, uint64_t config) {
  return store_result<int>(thread, config, 1);  // cudaSharedMemBankSizeFourByte
}

// Fills in the first fields of cudaFuncAttributes, as NVIDIA's library does.
uint32_t softgpu_cudaFuncGetAttributes(ThreadContext* thread, uint64_t attributes, uint64_t kernel) {
  static constexpr int kShared = 1, kConstant = 2, kLocal = 3, kThreads = 0, kRegisters = 4, kPtx = 5,
                       kBinary = 6;  // CUfunction_attribute
  const KernelServices& services = *device_runtime_of(thread).services;
  if (attributes == 0) return finish(thread, RuntimeError::invalid_value);
  uint64_t to = attributes;
  for (const int attribute : {kShared, kConstant, kLocal, kThreads, kRegisters, kPtx, kBinary}) {
    const auto value = services.kernel_attribute(kernel, attribute);
    if (!value) return finish(thread, RuntimeError::invalid_function);
    const bool wide = attribute == kShared || attribute == kConstant || attribute == kLocal;  // a size_t
    if (wide)
      store_result<uint64_t>(thread, to, static_cast<uint64_t>(*value));
    else
      store_result<int>(thread, to, *value);
    to += wide ? sizeof(uint64_t) : sizeof(int);
  }
  return 0;
}

uint32_t softgpu_cudaOccupancyMaxActiveBlocksPerMultiprocessor(ThreadContext* thread, uint64_t blocks,
                                                               uint64_t kernel, uint32_t threads,
                                                               uint64_t shared_bytes) {
  const KernelServices& services = *device_runtime_of(thread).services;
  if (threads == 0 || threads > INT32_MAX) return finish(thread, RuntimeError::invalid_value);
  return store_result(thread, blocks,
                      services.blocks_per_multiprocessor(kernel, static_cast<int>(threads), shared_bytes),
                      RuntimeError::invalid_function);
}

uint32_t softgpu_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(ThreadContext* thread,
                                                                        uint64_t blocks, uint64_t kernel,
                                                                        uint32_t threads,
                                                                        uint64_t shared_bytes,
                                                                        uint32_t flags) {
  if (flags > 1) return finish(thread, RuntimeError::invalid_value);
  return softgpu_cudaOccupancyMaxActiveBlocksPerMultiprocessor(thread, blocks, kernel, threads, shared_bytes);
}

uint32_t softgpu_cudaMalloc(ThreadContext* thread, uint64_t pointer, uint64_t bytes) {
  if (pointer == 0) return finish(thread, RuntimeError::invalid_value);
  const uint64_t address = softgpu_malloc(thread, bytes);
  const uint32_t error = store_result<uint64_t>(thread, pointer, address);
  return address == 0 && bytes != 0 ? finish(thread, RuntimeError::out_of_memory) : error;
}

uint32_t softgpu_cudaFree(ThreadContext* thread, uint64_t address) {
  softgpu_free(thread, address);
  return 0;
}

uint32_t softgpu_cudaStreamCreateWithFlags(ThreadContext* thread, uint64_t stream, uint32_t flags) {
  return create(thread, Kind::stream, stream, flags == 1);  // cudaStreamNonBlocking, which CUDA requires here
}

uint32_t softgpu_cudaStreamDestroy(ThreadContext* thread, uint64_t stream) {
  return destroy(thread, Kind::stream, stream);
}

uint32_t softgpu_cudaStreamWaitEvent(ThreadContext* thread, uint64_t stream, uint64_t event, uint32_t flags) {
  return use_event(thread, stream, event, flags == 0);
}

uint32_t softgpu_cudaEventCreateWithFlags(ThreadContext* thread, uint64_t event, uint32_t flags) {
  return create(thread, Kind::event, event, flags == 2);  // cudaEventDisableTiming, which CUDA requires here
}

uint32_t softgpu_cudaEventRecord(ThreadContext* thread, uint64_t event, uint64_t stream) {
  return use_event(thread, stream, event, true);
}

uint32_t softgpu_cudaEventRecordWithFlags(ThreadContext* thread, uint64_t event, uint64_t stream,
                                          uint32_t flags) {
  return use_event(thread, stream, event, flags == 0);
}

uint32_t softgpu_cudaEventDestroy(ThreadContext* thread, uint64_t event) {
  return destroy(thread, Kind::event, event);
}

uint64_t softgpu_cudaGetParameterBuffer(ThreadContext* thread, uint64_t alignment, uint64_t bytes) {
  constexpr uint64_t kMaxAlignment = 64;  // CUDA's limit
  uint64_t address = 0;
  with_launches(thread, [&](ChildLaunches& launches, const auto&) {
    return alignment > kMaxAlignment ? RuntimeError::invalid_value : launches.buffer(bytes, &address);
  });
  return address;
}

uint64_t softgpu_cudaGetParameterBufferV2(ThreadContext* thread, uint64_t kernel, const Dim3* grid,
                                          const Dim3* block, uint32_t shared_bytes) {
  uint64_t address = 0;
  with_launches(thread, [&](ChildLaunches& launches, const KernelServices& services) {
    return launches.buffer(services, kernel, {grid->size, block->size, shared_bytes}, &address);
  });
  return address;
}

uint32_t softgpu_cudaLaunchDevice(ThreadContext* thread, uint64_t kernel, uint64_t buffer, const Dim3* grid,
                                  const Dim3* block, uint32_t shared_bytes, uint64_t stream) {
  return with_launches(thread, [&](ChildLaunches& launches, const KernelServices& services) {
    return launches.launch(services, kernel, {grid->size, block->size, shared_bytes}, buffer, stream);
  });
}

uint32_t softgpu_cudaLaunchDeviceV2(ThreadContext* thread, uint64_t buffer, uint64_t stream) {
  return with_launches(thread,
                       [&](ChildLaunches& launches, const auto&) { return launches.launch(buffer, stream); });
}

uint64_t softgpu_cudaCGGetIntrinsicHandle(ThreadContext* thread, uint32_t scope) {
  constexpr uint32_t kGrid = 1;  // cudaCGScopeGrid
  return scope == kGrid ? thread->block->grid_workspace : 0;
}

// The algorithm and the barrier word of cooperative_groups.h: the highest bit flips when the last block
// arrives.
uint32_t softgpu_cudaCGSynchronizeGrid(ThreadContext* thread, uint64_t group, uint32_t) {
  if (!is_grid_group(thread, group)) return finish(thread, RuntimeError::invalid_value);
  constexpr uint32_t kTurn = 0x8000'0000;
  softgpu_barrier(thread, 0, 0, BarrierReduction::none, 0);
  if (thread->linear_tid == 0) {
    const BlockContext& block = *thread->block;
    const bool first = block.block_idx[0] == 0 && block.block_idx[1] == 0 && block.block_idx[2] == 0;
    auto* const word = reinterpret_cast<uint32_t*>(group + sizeof(uint32_t));
    const uint32_t before = __atomic_fetch_add(
        word, first ? kTurn - static_cast<uint32_t>(blocks_of(block) - 1) : 1, __ATOMIC_SEQ_CST);
    while (((before ^ __atomic_load_n(word, __ATOMIC_ACQUIRE)) & kTurn) == 0) softgpu_yield(thread);
  }
  softgpu_barrier(thread, 0, 0, BarrierReduction::none, 0);
  return 0;
}

uint32_t softgpu_cudaCGSynchronize(ThreadContext* thread, uint64_t group, uint32_t flags) {
  return softgpu_cudaCGSynchronizeGrid(thread, group, flags);
}

uint32_t softgpu_cudaCGGetSize(ThreadContext* thread, uint64_t threads, uint64_t grids, uint64_t group) {
  if (!is_grid_group(thread, group)) return finish(thread, RuntimeError::invalid_value);
  const BlockContext& block = *thread->block;
  const uint32_t per_block = block.block_dim[0] * block.block_dim[1] * block.block_dim[2];
  if (threads != 0)
    store_result<uint32_t>(thread, threads, static_cast<uint32_t>(blocks_of(block)) * per_block);
  if (grids != 0) store_result<uint32_t>(thread, grids, 1);
  return 0;
}

uint32_t softgpu_cudaCGGetRank(ThreadContext* thread, uint64_t thread_rank, uint64_t grid_rank,
                               uint64_t group) {
  if (!is_grid_group(thread, group)) return finish(thread, RuntimeError::invalid_value);
  const BlockContext& block = *thread->block;
  const uint32_t per_block = block.block_dim[0] * block.block_dim[1] * block.block_dim[2];
  const uint32_t of_grid =
      (block.block_idx[2] * block.grid_dim[1] + block.block_idx[1]) * block.grid_dim[0] + block.block_idx[0];
  if (thread_rank != 0) store_result<uint32_t>(thread, thread_rank, of_grid * per_block + thread->linear_tid);
  if (grid_rank != 0) store_result<uint32_t>(thread, grid_rank, 0);
  return 0;
}

}  // extern "C"
}  // namespace gpupool::softgpu
