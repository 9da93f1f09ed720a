// Runs KernelCode without the executor: one thread after the other on the calling thread, with warps of one
// thread. Sufficient for what instructions compute; synchronization of threads is tested with the real
// executor. A program that does not compile fails the test.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "server/softgpu/jit/program.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {

struct FakeGrid {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t dynamic_shared = 0;
  bool by_thread = false;  // uses thread_entry even if there is a loop_entry
};

struct FakeResult {
  FaultKind fault = FaultKind::none;
  uint64_t address = 0;
  uint32_t yields = 0;
};

// Zeroed memory that kernels may access; never freed.
uint64_t device_bytes(uint64_t size);

template <typename T>
T* device_array(const std::vector<T>& values) {
  auto* memory = reinterpret_cast<T*>(device_bytes(std::max<size_t>(values.size(), 1) * sizeof(T)));
  std::memcpy(memory, values.data(), values.size() * sizeof(T));
  return memory;
}

// A compiled program with its data segment. Fails the running test if `texts` do not compile.
class Loaded {
 public:
  explicit Loaded(std::vector<std::string> texts, CompileOptions options = {});
  explicit Loaded(const std::string& text) : Loaded(std::vector<std::string>{text}) {}
  const Program& program() const { return *program_; }
  uint64_t data() const { return data_; }
  FakeResult run(std::string_view kernel, const FakeGrid& grid,
                 const std::vector<std::byte>& parameters) const;

  template <typename... Arguments>
  FakeResult run(std::string_view kernel, const FakeGrid& grid, Arguments... arguments) const {
    std::vector<std::byte> block;
    (append(block, arguments), ...);
    return run(kernel, grid, block);
  }

 private:
  template <typename T>
  static void append(std::vector<std::byte>& block, const T& value) {
    block.resize((block.size() + alignof(T) - 1) / alignof(T) * alignof(T) + sizeof(T));
    std::memcpy(block.data() + block.size() - sizeof(T), &value, sizeof(T));
  }

  std::shared_ptr<const Program> program_;
  uint64_t data_ = 0;
};

std::string printed();  // formats that kernels passed to vprintf, concatenated
// Compiles the text and returns the error, or "" if it succeeds.
std::string compile_error(std::string_view text, CompileOptions options = {});
CompileErrorCode compile_error_code(std::string_view text, CompileOptions options = {});

}  // namespace gpupool::softgpu
