// Runs KernelCode without the executor: one thread after the other on the calling thread, every warp one
// thread wide. Enough for what instructions compute; how threads meet is tested with the real executor.
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
  bool by_thread = false;  // thread_entry even where there is a loop_entry
};

struct FakeResult {
  FaultKind fault = FaultKind::none;
  uint64_t address = 0;
  uint32_t yields = 0;
};

// Memory a kernel may touch, zeroed; lives until the process ends.
uint64_t device_bytes(uint64_t size);

template <typename T>
T* device_array(const std::vector<T>& values) {
  auto* memory = reinterpret_cast<T*>(device_bytes(std::max<size_t>(values.size(), 1) * sizeof(T)));
  std::memcpy(memory, values.data(), values.size() * sizeof(T));
  return memory;
}

// A program with its data segment in place. Fails the running test when `texts` do not compile.
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

std::string printed();  // what kernels passed to vprintf: the formats, one after the other
// Compiles and returns the error, or "" when there is none.
std::string compile_error(std::string_view text, CompileOptions options = {});
CompileErrorCode compile_error_code(std::string_view text, CompileOptions options = {});

}  // namespace gpupool::softgpu
