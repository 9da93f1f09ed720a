// Runs grids: the compute part of one softgpu device in this process.
//
// One GridExecutor per device and process. It owns a pool of host threads; blocks of all submitted grids run on them,
// each block on one thread, its CUDA threads in loops or on fibers. Grids start in the order of submission and overlap
// when a grid has no blocks left to start. Thread-safe. Faults end the grid (blocks not started are skipped) and are
// reported to its completion callback; they never end the process.
#pragma once
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {

// A kernel's packed parameters: few in most cases, and then without an allocation.
class PackedParameters {
 public:
  void resize(size_t bytes) {
    if (bytes > sizeof few_) more_.resize(bytes);
    size_ = bytes;
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::byte* data() { return size_ > sizeof few_ ? more_.data() : few_; }
  const std::byte* data() const { return size_ > sizeof few_ ? more_.data() : few_; }

 private:
  size_t size_ = 0;
  std::byte few_[128] = {};
  std::vector<std::byte> more_;
};

// Some of a device's multiprocessors, by number. A multiprocessor is one thread of the executor.
constexpr size_t kMostMultiprocessors = 1024;
using Multiprocessors = std::bitset<kMostMultiprocessors>;

class KernelServices;  // exec/kernel_services.h

struct GridRequest {
  KernelCode code;
  std::string_view kernel_name;  // for messages; stays valid until the grid is done
  uint32_t grid_dim[3] = {1, 1, 1};
  uint32_t block_dim[3] = {1, 1, 1};
  uint32_t static_shared_bytes = 0;
  uint32_t dynamic_shared_bytes = 0;
  uint32_t local_bytes = 0;      // KernelInfo::local_bytes
  uint32_t stack_bytes = 0;      // CU_LIMIT_STACK_SIZE; each thread has at least 64 KiB in any case
  uint64_t module_data = 0;
  bool cooperative = false;      // all blocks must make progress together (grid synchronisation)
  // Where it runs; null: anywhere. A grid with multiprocessors of its own (a green context's) runs beside other processes'
  // work, without the device's turn. At least one of them must exist.
  std::shared_ptr<const Multiprocessors> multiprocessors;
  // Blocks of a cluster; each divides grid_dim, and the product is at most kMaxClusterBlocks. Zeros: no clusters.
  uint32_t cluster_dim[3] = {0, 0, 0};
  PackedParameters params;
  const KernelServices* services = nullptr;  // null: no thread calls the device runtime. Stays until the grid is done
};

struct GridResult {
  FaultKind fault = FaultKind::none;
  uint64_t address = 0;          // faulting address, when there is one
  std::string detail;            // one line for the log: kernel, block, thread, address, or the assertion's text
  uint64_t busy_nanoseconds = 0; // GPU time used: time for which the grid held the device
};

class DeviceTurns;  // memory/shared_device.h: time slices between processes that share the device

class GridExecutor {
 public:
  // threads 0: one per core. `turns` may be null (device not shared); it must outlive the executor.
  static std::unique_ptr<GridExecutor> create(unsigned threads, DeviceTurns* turns);
  virtual ~GridExecutor() = default;  // waits for running blocks, cancels the rest
  // `done` runs on a pool thread (or in the destructor: FaultKind::cancelled), exactly once; it must not block and must
  // not destroy the executor.
  virtual void submit(GridRequest request, std::function<void(GridResult)> done) = 0;
};

// Device printf text collected so far by kernels of this process, oldest first; empties the buffer. Thread-safe.
// The runtime writes it to stdout at the synchronisation points CUDA names.
std::string take_printf_output();
// The same for the messages of failed assertions, which belong on stderr at the next synchronisation.
std::string take_assert_output();

// Bytes kept for printf (CU_LIMIT_PRINTF_FIFO_SIZE, default 1 MiB): when kernels print more, the oldest text is dropped.
void set_printf_fifo_bytes(uint64_t bytes);
uint64_t printf_fifo_bytes();
// The heap of malloc in kernels (CU_LIMIT_MALLOC_HEAP_SIZE, default 8 MiB). False once kernels have used the heap.
bool set_kernel_heap_bytes(uint64_t bytes);
uint64_t kernel_heap_bytes();
// Frees everything kernels have allocated; for when no kernel runs or will use it (the context goes).
void reset_kernel_heap();

}  // namespace gpupool::softgpu
