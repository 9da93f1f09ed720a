// Runs hand-written kernels on the real executor: C++ functions that call softgpu_* as generated code does.
// For the tests of the executor.
#pragma once
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "common/sanitizers.h"
#include "server/softgpu/exec/grid.h"
#include "server/softgpu/memory/address_space.h"
#include "tests/support/catch.h"

namespace softgpu_test {

using namespace gpupool::softgpu;

// Divisor of the size of the larger tests: with ThreadSanitizer a fiber costs about a hundred times more.
constexpr uint32_t kLess = gpupool::kThreadSanitized ? 8 : 1;

// Zeroed memory that kernels may access.
template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count), address_(*allocate_host(count * sizeof(T), 4096)) {}
  ~Buffer() { free_host(address_, count_ * sizeof(T)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() const { return reinterpret_cast<T*>(address_); }
  T& operator[](size_t i) const { return data()[i]; }
  size_t size() const { return count_; }
  uint64_t address() const { return address_; }

 private:
  size_t count_;
  uint64_t address_;
};

// The kernel's parameter block as type T.
template <typename T>
T& params(ThreadContext* thread) {
  return *reinterpret_cast<T*>(thread->block->params);
}
template <typename T>
T* shared(ThreadContext* thread) {
  return reinterpret_cast<T*>(thread->block->shared_base);
}

template <typename T>
GridRequest request(ThreadEntry kernel, uint32_t blocks, uint32_t threads, const T& parameters) {
  GridRequest r;
  r.code.thread_entry = kernel;
  r.kernel_name = "test_kernel";
  r.grid_dim[0] = blocks;
  r.block_dim[0] = threads;
  r.params.resize(sizeof(T));
  std::memcpy(r.params.data(), &parameters, sizeof(T));
  return r;
}

inline std::future<GridResult> submit(GridExecutor& executor, GridRequest r) {
  auto promise = std::make_shared<std::promise<GridResult>>();
  auto future = promise->get_future();
  executor.submit(std::move(r), [promise](GridResult result) { promise->set_value(std::move(result)); });
  return future;
}

inline GridResult run(GridExecutor& executor, GridRequest r) {
  return submit(executor, std::move(r)).get();
}

// A shared executor, for tests that need no other.
inline GridExecutor& executor() {
  static auto instance = GridExecutor::create(3, nullptr);
  return *instance;
}

template <typename T>
GridResult run(ThreadEntry kernel, uint32_t blocks, uint32_t threads, const T& parameters) {
  return run(executor(), request(kernel, blocks, threads, parameters));
}

// Runs a kernel written for one thread as loops over the block's threads, as the code generator does.
template <ThreadEntry kernel>
void in_loops(BlockContext* block, ThreadContext* scratch) {
  uint32_t linear = 0;
  scratch->block = block;
  for (uint32_t z = 0; z < block->block_dim[2]; ++z) {
    for (uint32_t y = 0; y < block->block_dim[1]; ++y) {
      for (uint32_t x = 0; x < block->block_dim[0]; ++x, ++linear) {
        scratch->tid[0] = x;
        scratch->tid[1] = y;
        scratch->tid[2] = z;
        scratch->linear_tid = linear;
        scratch->lane = linear % kWarpSize;
        scratch->warp = linear / kWarpSize;
        kernel(scratch);
      }
    }
  }
}

}  // namespace softgpu_test
