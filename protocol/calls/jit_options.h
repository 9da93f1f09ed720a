// Options of the JIT compiler, which cuModuleLoadDataEx, cuLibraryLoadData and cuLink* take, for the client
// library and softgpu: which ones are refused, and how logs are returned. As NVIDIA's driver does, both logs
// are written by each call that gets past its checks, empty if there is nothing to say. One thread at a time.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

// The options as the program passed them. The arrays are the program's.
struct JitOptionList {
  static constexpr unsigned kMaxOptions = 64;  // more than exist; a greater count is invalid
  unsigned count = 0;
  const CUjit_option* options = nullptr;
  void** values = nullptr;

  bool valid() const { return count == 0 || (count <= kMaxOptions && options && values); }
  // Returns where the option's value is; null: the option is not in the list.
  void** find(CUjit_option option) const {
    for (unsigned i = 0; valid() && i < count; ++i) {
      if (options[i] == option) return &values[i];
    }
    return nullptr;
  }
  size_t number(CUjit_option option) const {
    void** const value = find(option);
    return value ? static_cast<size_t>(reinterpret_cast<uintptr_t>(*value)) : 0;
  }
};

// One of the two logs. Its size option first gives the size of the buffer and later receives the number of
// bytes written, so the size is saved here.
class JitLog {
 public:
  JitLog() = default;
  JitLog(const JitOptionList& list, CUjit_option buffer, CUjit_option size)
      : size_(list.find(size)), room_(list.number(size)) {
    if (void** const given = list.find(buffer)) buffer_ = static_cast<char*>(*given), given_ = true;
  }
  // False: a size without memory.
  bool valid() const { return !given_ || buffer_ || room_ == 0; }
  // Writes as much of the text as fits, and a NUL. An empty text leaves what an earlier call with the same
  // linker has written. Returns false if the program gave no buffer.
  bool write(std::string_view text) {
    if (!buffer_ || !size_) return false;
    if (text.empty() && filled_) return true;
    const size_t length = room_ > 1 ? std::min(text.size(), room_ - 1) : 0;
    std::copy_n(text.data(), length, buffer_);
    buffer_[length] = '\0';  // NVIDIA's driver writes it even into a buffer of size 0
    const size_t written = length < text.size() && length != 0 ? room_ : length;  // a cut text counts its NUL
    *size_ = reinterpret_cast<void*>(static_cast<uintptr_t>(written));
    filled_ = !text.empty();
    return true;
  }

 private:
  char* buffer_ = nullptr;
  bool given_ = false, filled_ = false;
  void** size_ = nullptr;
  size_t room_ = 0;
};

struct JitLogs {
  JitLogs() = default;
  explicit JitLogs(const JitOptionList& list)
      : info(list, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES),
        error(list, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {}
  JitLog info, error;
};

// Checks the options before anything is loaded. Options with names and addresses of symbols are not
// supported; without values they are invalid, and without symbols they have no effect.
inline CUresult check_jit_options(const JitOptionList& list, const JitLogs& logs) {
  if (!list.valid() || !logs.info.valid() || !logs.error.valid()) return CUDA_ERROR_INVALID_VALUE;
  constexpr unsigned kGlobalNames = 17, kGlobalCount = 19, kReferencedKernelNames = 25,
                     kReferencedKernelCount = 26, kReferencedVariableCount = 28;
  for (unsigned i = 0; i < list.count; ++i) {
    const auto option = static_cast<unsigned>(list.options[i]);
    if (option >= CU_JIT_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
    const bool global = option >= kGlobalNames && option <= kGlobalCount;
    if (!global && (option < kReferencedKernelNames || option > kReferencedVariableCount)) continue;
    if (list.values[i]) return CUDA_ERROR_NOT_SUPPORTED;
    const bool counts = option == kReferencedKernelCount || option == kReferencedVariableCount;
    if (!counts) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace gpupool::cuda
