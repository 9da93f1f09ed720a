// Tensor maps. The server's driver encodes them, because their 128 bytes are opaque. Programs encode the same
// map before every launch, so results are cached by their arguments.
#include <mutex>
#include <string>
#include <unordered_map>

#include "client/session/call.h"
#include "protocol/driver/exports.h"

#if CUDA_VERSION >= 12000

using namespace gpupool::client;

namespace {

constexpr cuuint32_t kMaxRank = 5;
constexpr size_t kMostKept =
    4096;  // cached maps, about 500 bytes each with their key; the cache is cleared when full

// Encoded tensor maps, by a key of all arguments. Thread-safe.
class EncodedMaps {
 public:
  bool find(const std::string& key, CUtensorMap* map) {
    const std::lock_guard lock(mutex_);
    const auto found = maps_.find(key);
    if (found != maps_.end()) *map = found->second;
    return found != maps_.end();
  }
  void keep(const std::string& key, const CUtensorMap& map) {
    const std::lock_guard lock(mutex_);
    if (maps_.size() >= kMostKept) maps_.clear();
    maps_[key] = map;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, CUtensorMap> maps_;
};
EncodedMaps& encoded_maps() {
  static auto* const only = new EncodedMaps;  // programs call the driver from exit handlers
  return *only;
}

// The key of a cached result: the bytes of all arguments.
class CacheKey {
 public:
  template <class... Values>
  CacheKey& all(const Values&... values) {
    (array(&values, 1), ...);
    return *this;
  }
  template <class T>
  CacheKey& array(const T* values, size_t count) {
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

size_t saturating_subtract(cuuint32_t rank, cuuint32_t by) {
  return rank > by ? rank - by : 0;
}

// Checks the map's alignment. `add_arguments` adds all arguments to the key.
template <class Row, class AddArguments, class... Arguments>
CUresult run(CUtensorMap* map, const AddArguments& add_arguments, Arguments... arguments) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (const CUresult result = session->before_call(context); result != CUDA_SUCCESS) return result;
    if (!map || reinterpret_cast<uintptr_t>(map) % 64 != 0) return CUDA_ERROR_INVALID_VALUE;
    CacheKey key;
    add_arguments(key);
    key.array(&Row::kId, 1).array(&context->device->ordinal, 1);
    if (key.complete() && encoded_maps().find(key.bytes(), map)) return CUDA_SUCCESS;
    const CUresult result = Row::at({session, context}, {map, arguments...});
    if (key.complete() && result == CUDA_SUCCESS) encoded_maps().keep(key.bytes(), *map);
    return result;
  });
}

}  // namespace

// A rank above the maximum would make the client read beyond the arrays.
CUDA_EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                            void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                                            const cuuint32_t* box, const cuuint32_t* element_strides,
                                            CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                            CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (rank > kMaxRank) return CUDA_ERROR_INVALID_VALUE;
  const auto add_arguments = [&](CacheKey& key) {
    key.all(type, rank, address, interleave, swizzle, promotion, fill);
    key.array(sizes, rank)
        .array(strides, saturating_subtract(rank, 1))
        .array(box, rank)
        .array(element_strides, rank);
  };
  return run<rows::cuTensorMapEncodeTiled>(map, add_arguments, type, rank, address, sizes, strides, box,
                                           element_strides, interleave, swizzle, promotion, fill);
}

CUDA_EXPORT CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                             void* address, const cuuint64_t* sizes,
                                             const cuuint64_t* strides, const int* lower, const int* upper,
                                             cuuint32_t channels, cuuint32_t pixels,
                                             const cuuint32_t* element_strides,
                                             CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                             CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (rank > kMaxRank) return CUDA_ERROR_INVALID_VALUE;
  const auto add_arguments = [&](CacheKey& key) {
    key.all(type, rank, address, channels, pixels, interleave, swizzle, promotion, fill);
    key.array(sizes, rank)
        .array(strides, saturating_subtract(rank, 1))
        .array(lower, saturating_subtract(rank, 2));
    key.array(upper, saturating_subtract(rank, 2)).array(element_strides, rank);
  };
  return run<rows::cuTensorMapEncodeIm2col>(map, add_arguments, type, rank, address, sizes, strides, lower,
                                            upper, channels, pixels, element_strides, interleave, swizzle,
                                            promotion, fill);
}

CUDA_EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  return run<rows::cuTensorMapReplaceAddress>(
      map, [&](CacheKey& key) { key.all(address).array(map, 1); }, address);
}

#if CUDA_VERSION >= 12080
CUDA_EXPORT CUresult cuTensorMapEncodeIm2colWide(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
    const cuuint64_t* strides, int lower, int upper, cuuint32_t channels, cuuint32_t pixels,
    const cuuint32_t* element_strides, CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (rank > kMaxRank) return CUDA_ERROR_INVALID_VALUE;
  const auto add_arguments = [&](CacheKey& key) {
    key.all(type, rank, address, lower, upper, channels, pixels, interleave, mode, swizzle, promotion, fill);
    key.array(sizes, rank).array(strides, saturating_subtract(rank, 1)).array(element_strides, rank);
  };
  return run<rows::cuTensorMapEncodeIm2colWide>(map, add_arguments, type, rank, address, sizes, strides,
                                                lower, upper, channels, pixels, element_strides, interleave,
                                                mode, swizzle, promotion, fill);
}
#endif
#endif
