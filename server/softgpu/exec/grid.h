// GridExecutor runs grids: the compute part of one softgpu device in this process.
//
// One GridExecutor exists per device and process; the runtime owns it. It owns a pool of host threads that
// run the blocks of all submitted grids: each block on one thread, its CUDA threads in loops or on fibers.
// Grids start in submission order; the next grid starts when the current one has no blocks left to start.
// Thread-safe. A fault ends its grid (blocks not yet started are skipped) and is reported to the completion
// callback; it never ends the process.
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

// Packed parameters of a kernel. Up to 128 bytes are stored without an allocation.
class PackedParameters {
 public:
  void resize(size_t bytes) {
    if (bytes > sizeof inline_) heap_.resize(bytes);
    size_ = bytes;
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::byte* data() { return size_ > sizeof inline_ ? heap_.data() : inline_; }
  const std::byte* data() const { return size_ > sizeof inline_ ? heap_.data() : inline_; }

 private:
  size_t size_ = 0;
  std::byte inline_[128] = {};
  std::vector<std::byte> heap_;
};

// A set of a device's multiprocessors, by number. Each multiprocessor is one thread of the executor.
constexpr size_t kMaxMultiprocessors = 1024;
using Multiprocessors = std::bitset<kMaxMultiprocessors>;

class KernelServices;  // exec/kernel_services.h

struct GridRequest {
  KernelCode code;
  std::string_view kernel_name;  // for messages; must stay valid until the grid is done
  uint32_t grid_dim[3] = {1, 1, 1};
  uint32_t block_dim[3] = {1, 1, 1};
  uint32_t static_shared_bytes = 0;
  uint32_t dynamic_shared_bytes = 0;
  uint32_t local_bytes = 0;  // KernelInfo::local_bytes
  uint32_t stack_bytes = 0;  // CU_LIMIT_STACK_SIZE; each thread gets at least 64 KiB
  uint64_t module_data = 0;
  bool packed_parameters = false;  // the caller passed them as one buffer
  bool cooperative = false;        // all blocks must make progress together (grid synchronisation)
  // Multiprocessors that may run the grid; null: all. A grid with its own multiprocessors (a green context's)
  // runs concurrently with other processes' work, without holding the device's turn. At least one of them
  // must exist.
  std::shared_ptr<const Multiprocessors> multiprocessors;
  // Cluster dimensions in blocks; each must divide grid_dim, and the product is at most kMaxClusterBlocks.
  // Zeros: no clusters.
  uint32_t cluster_dim[3] = {0, 0, 0};
  PackedParameters params;
  const KernelServices* services = nullptr;  // null: no device runtime calls. Must outlive the grid
};

struct GridResult {
  FaultKind fault = FaultKind::none;
  uint64_t address = 0;           // faulting address, if any
  std::string detail;             // one log line: kernel, block, thread, address, or the assertion's text
  uint64_t busy_nanoseconds = 0;  // time for which the grid held the device
};

class DeviceTurns;  // memory/shared_device.h: time slices between processes that share the device

class GridExecutor {
 public:
  // Creates the executor; threads 0: one per core. `turns` may be null (device not shared) and must outlive
  // the executor. Returns null if the address range or the signal handlers cannot be set up.
  static std::unique_ptr<GridExecutor> create(unsigned threads, DeviceTurns* turns);
  virtual ~GridExecutor() = default;  // waits for running blocks, cancels everything else
  // Runs the grid asynchronously. `done` is called exactly once, on a pool thread, in the destructor
  // (FaultKind::cancelled), or in submit() if the grid cannot run. It must not block and must not destroy the
  // executor.
  virtual void submit(GridRequest request, std::function<void(GridResult)> done) = 0;
};

// Returns and removes the device printf text collected so far from kernels of this process, oldest first.
// Thread-safe. The runtime writes it to stdout at the synchronisation points that CUDA names.
std::string take_printf_output();
// The same for messages of failed assertions, which the runtime writes to stderr at the next synchronisation.
std::string take_assert_output();

// Size of the printf buffer in bytes (CU_LIMIT_PRINTF_FIFO_SIZE, default 1 MiB); when it is full, the oldest
// text is dropped.
void set_printf_fifo_bytes(uint64_t bytes);
uint64_t printf_fifo_bytes();
// Size of the heap for malloc in kernels, in bytes (CU_LIMIT_MALLOC_HEAP_SIZE, default 8 MiB). Returns false
// if kernels have used the heap already and the size would change.
bool set_kernel_heap_bytes(uint64_t bytes);
uint64_t kernel_heap_bytes();
// Frees all memory allocated by kernels. Call only when no kernel runs or will use it (when the context is
// destroyed).
void reset_kernel_heap();

}  // namespace gpupool::softgpu
