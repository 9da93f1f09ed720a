// The options of cuModuleLoadDataEx, cuLibraryLoadData and cuLink*: the logs, the wall time and the number of
// registers take effect, symbols' names and addresses are not supported, and all others are ignored. One
// thread at a time.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "protocol/driver/cuda_header.h"
#include "protocol/driver/driver_log.h"
#include "server/softgpu/jit/program.h"

namespace gpupool::softgpu::api {

class JitOptions {
 public:
  static constexpr unsigned kMaxOptions = 64;  // more than exist; a greater count is invalid
  JitOptions(unsigned count, const CUjit_option* options, void** values)
      : count_(count),
        options_(options),
        values_(values),
        info_room_(room(CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)),
        error_room_(room(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)) {}

  CUresult check() const {
    if (!valid()) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count_; ++i) {
      const auto option = static_cast<unsigned>(options_[i]);
      if (option >= CU_JIT_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
      // Names and addresses of symbols.
      if ((option >= 17 && option <= 19) || (option >= 25 && option <= 28)) return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
  }
  bool valid() const {
    return count_ == 0 || (count_ <= kMaxOptions && options_ != nullptr && values_ != nullptr);
  }

  // Per thread; 0: no limit.
  uint32_t max_registers() const { return number(CU_JIT_MAX_REGISTERS); }

  // Writes the reason of a failure to the program's error log, or to stderr if it gave none.
  void report_failure(const std::string& why) const {
    put_time();
    if (why.empty()) return;
    cuda::log_for_program(cuda::Severity::error, why);
    if (!write(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error_room_, why))
      std::fprintf(stderr, "softgpu: %s\n", why.c_str());
  }
  // Writes the info log of a compiled program: its kernels' properties, if CU_JIT_LOG_VERBOSE is set.
  bool report_success(const Program& program) const {
    std::string note;
    if (number(CU_JIT_LOG_VERBOSE) != 0)
      for (const KernelInfo& kernel : program.kernels()) note += properties(kernel);
    return report_success(note);
  }
  // Writes the info log of a successful call; false if the program gave no buffer for it.
  bool report_success(const std::string& note = {}) const {
    put_time();
    return write(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, info_room_, note);
  }

 private:
  void** value(CUjit_option option) const {
    for (unsigned i = 0; i < count_; ++i) {
      if (options_[i] == option) return &values_[i];
    }
    return nullptr;
  }
  size_t room(CUjit_option size_option) const {
    void** const size = valid() ? value(size_option) : nullptr;
    return size == nullptr ? 0 : static_cast<size_t>(reinterpret_cast<uintptr_t>(*size));
  }
  uint32_t number(CUjit_option option) const {
    void** const at = valid() ? value(option) : nullptr;
    return at == nullptr ? 0 : static_cast<uint32_t>(reinterpret_cast<uintptr_t>(*at));
  }
  // In the format of NVIDIA's driver.
  static std::string properties(const KernelInfo& kernel) {
    return "info    : Function properties for '" + kernel.name + "':\ninfo    : used " +
           std::to_string(kernel.registers) + " registers, 0 stack, " +
           std::to_string(kernel.static_shared_bytes) + " bytes smem, " +
           std::to_string(kernel.parameter_bytes) + " bytes cmem[0], " + std::to_string(kernel.local_bytes) +
           " bytes lmem\n";
  }
  void put_time() const {
    void** const time = valid() ? value(CU_JIT_WALL_TIME) : nullptr;
    const float milliseconds =
        std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - begin_).count();
    if (time != nullptr) std::memcpy(time, &milliseconds, sizeof milliseconds);
  }
  bool write(CUjit_option buffer_option, CUjit_option size_option, size_t room,
             const std::string& text) const {
    void** buffer = value(buffer_option);
    void** size = value(size_option);
    if (buffer == nullptr || *buffer == nullptr || room == 0) return false;
    const size_t length = std::min(text.size(), room - 1);
    std::memcpy(*buffer, text.data(), length);
    static_cast<char*>(*buffer)[length] = '\0';
    *size = reinterpret_cast<void*>(static_cast<uintptr_t>(length));
    return true;
  }

  const unsigned count_;
  const CUjit_option* const options_;
  void** const values_;
  // Sizes of the program's log buffers, saved because the options' values are replaced by the numbers of
  // bytes written.
  const size_t info_room_;
  const size_t error_room_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace gpupool::softgpu::api
