// Tensor maps. The server's driver encodes them, because their 128 bytes are opaque. Programs encode the same
// map before every launch, so results are cached by their arguments.
#include <mutex>
#include <string>
#include <unordered_map>

#include "client/call.h"
#include "protocol/cuda/exports.h"

#if CUDA_VERSION >= 12000

using namespace gpupool::client;

namespace {

constexpr cuuint32_t kMaxRank = 5;
constexpr size_t kMostKept = 4096;  // cached maps, about 500 bytes each with their key; the cache is cleared when full

// Encoded tensor maps, by a key of all arguments. Thread-safe.
class EncodedMaps {
 public:
  bool find(const std::string& question, CUtensorMap* map) {
    const std::lock_guard lock(mutex_);
    const auto found = answers_.find(question);
    if (found != answers_.end()) *map = found->second;
    return found != answers_.end();
  }
  void keep(const std::string& question, const CUtensorMap& map) {
    const std::lock_guard lock(mutex_);
    if (answers_.size() >= kMostKept) answers_.clear();
    answers_[question] = map;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, CUtensorMap> answers_;
};
EncodedMaps& encoded_maps() {
  static auto* const only = new EncodedMaps;  // programs call the driver from exit handlers
  return *only;
}

// The key of a cached result: the bytes of all arguments.
class Question {
 public:
  template <class... Values>
  Question& all(const Values&... values) {
    (array(&values, 1), ...);
    return *this;
  }
  template <class T>
  Question& array(const T* values, size_t count) {
    complete_ &= values != nullptr;  // the server rejects null arrays
    if (values) bytes_.append(reinterpret_cast<const char*>(values), count * sizeof *values);
    return *this;
  }
  bool complete() const { return complete_; }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  bool complete_ = true;
};

size_t less(cuuint32_t rank, cuuint32_t by) { return rank > by ? rank - by : 0; }

// Checks the map's alignment. `ask` adds all arguments to the key.
template <class Row, class Ask, class... Arguments>
CUresult run(CUtensorMap* map, const Ask& ask, Arguments... arguments) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (const CUresult result = session->before_call(context); result != CUDA_SUCCESS) return result;
    if (!map || reinterpret_cast<uintptr_t>(map) % 64 != 0) return CUDA_ERROR_INVALID_VALUE;
    Question question;
    ask(question);
    question.array(&Row::kId, 1).array(&context->device->ordinal, 1);
    if (question.complete() && encoded_maps().find(question.bytes(), map)) return CUDA_SUCCESS;
    const CUresult result = Row::at({session, context}, {map, arguments...});
    if (question.complete() && result == CUDA_SUCCESS) encoded_maps().keep(question.bytes(), *map);
    return result;
  });
}

}  // namespace

// A rank above the maximum would make the client read beyond the arrays.
CUDA_EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
                                            const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* element_strides,
                                            CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                            CUtensorMapFloatOOBfill fill) {
  if (rank > kMaxRank) return CUDA_ERROR_INVALID_VALUE;
  const auto ask = [&](Question& question) {
    question.all(type, rank, address, interleave, swizzle, promotion, fill);
    question.array(sizes, rank).array(strides, less(rank, 1)).array(box, rank).array(element_strides, rank);
  };
  return run<rows::cuTensorMapEncodeTiled>(map, ask, type, rank, address, sizes, strides, box, element_strides, interleave, swizzle,
                                           promotion, fill);
}

CUDA_EXPORT CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
                                             const cuuint64_t* strides, const int* lower, const int* upper, cuuint32_t channels,
                                             cuuint32_t pixels, const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (rank > kMaxRank) return CUDA_ERROR_INVALID_VALUE;
  const auto ask = [&](Question& question) {
    question.all(type, rank, address, channels, pixels, interleave, swizzle, promotion, fill);
    question.array(sizes, rank).array(strides, less(rank, 1)).array(lower, less(rank, 2)).array(upper, less(rank, 2)).array(element_strides, rank);
  };
  return run<rows::cuTensorMapEncodeIm2col>(map, ask, type, rank, address, sizes, strides, lower, upper, channels, pixels, element_strides,
                                            interleave, swizzle, promotion, fill);
}

CUDA_EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  return run<rows::cuTensorMapReplaceAddress>(map, [&](Question& question) { question.all(address).array(map, 1); }, address);
}

#if CUDA_VERSION >= 12080
CUDA_EXPORT CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                                 const cuuint64_t* sizes, const cuuint64_t* strides, int lower, int upper,
                                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
                                                 CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
                                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (rank > kMaxRank) return CUDA_ERROR_INVALID_VALUE;
  const auto ask = [&](Question& question) {
    question.all(type, rank, address, lower, upper, channels, pixels, interleave, mode, swizzle, promotion, fill);
    question.array(sizes, rank).array(strides, less(rank, 1)).array(element_strides, rank);
  };
  return run<rows::cuTensorMapEncodeIm2colWide>(map, ask, type, rank, address, sizes, strides, lower, upper, channels, pixels,
                                                element_strides, interleave, mode, swizzle, promotion, fill);
}
#endif
#endif
