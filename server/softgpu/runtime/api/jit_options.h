// The options of cuModuleLoadDataEx, cuLibraryLoadData and cuLink*: only the logs and the wall time mean
// something here.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>

#include "protocol/cuda/cuda_header.h"

namespace gpupool::softgpu::api {

class JitOptions {
 public:
  JitOptions(unsigned count, const CUjit_option* options, void** values)
      : count_(count), options_(options), values_(values) {}

  bool valid() const { return count_ == 0 || (options_ != nullptr && values_ != nullptr); }

  // Fills the program's log buffers. `error` may be empty.
  void report(const std::string& error) const {
    write(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error);
    write(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, {});
  }

 private:
  void** value(CUjit_option option) const {
    for (unsigned i = 0; i < count_; ++i) {
      if (options_[i] == option) return &values_[i];
    }
    return nullptr;
  }
  void write(CUjit_option buffer_option, CUjit_option size_option, const std::string& text) const {
    void** buffer = value(buffer_option);
    void** size = value(size_option);
    if (buffer == nullptr || *buffer == nullptr || size == nullptr) return;
    // The size comes in as the buffer's and goes out as what was written.
    const auto room = static_cast<size_t>(reinterpret_cast<uintptr_t>(*size));
    const size_t length = room == 0 ? 0 : std::min(text.size(), room - 1);
    if (room != 0) {
      std::memcpy(*buffer, text.data(), length);
      static_cast<char*>(*buffer)[length] = '\0';
    }
    *size = reinterpret_cast<void*>(static_cast<uintptr_t>(length));
  }

  const unsigned count_;
  const CUjit_option* const options_;
  void** const values_;
};

}  // namespace gpupool::softgpu::api
