// cuMemBatchDecompressAsync: batches of data for the GPU's decompression engine, if the server's device has
// one.
#include <cstdint>
#include <span>

#include "client/api/device_range.h"
#include "client/graphs/capture.h"
#include "client/memory/compared_copies.h"
#include "client/memory/mirrors.h"
#include "client/session/call.h"
#include "protocol/driver/exports.h"

#if CUDA_VERSION >= 12080

using namespace gpupool;
using namespace gpupool::client;

namespace {

CUresult decompress(CUmemDecompressParams* operations, size_t count, unsigned flags, size_t* failed,
                    CUstream stream) {
  return guarded([&]() -> CUresult {
    CallTarget target;
    if (const CUresult result = require_stream_for_work(&target.session, &target.context, stream);
        result != CUDA_SUCCESS)
      return result;
    const auto& attributes = target.context->device->attributes;
    const auto engine = attributes.find(CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK);
    if (engine == attributes.end() || engine->second == 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (failed) *failed = SIZE_MAX;
    if (!operations || count == 0 || count > cuda::kMaxArrayBytes / sizeof *operations || flags != 0)
      return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult refused = capture::refuse(*target.context, stream); refused != CUDA_SUCCESS)
      return refused;
    for (size_t i = 0; i < count; ++i) {
      const auto there = [&](const void* memory, uint64_t size) {
        return is_device_range_mapped(*target.session, reinterpret_cast<uintptr_t>(memory), size);
      };
      const CUmemDecompressParams& one = operations[i];
      if (there(one.src, one.srcNumBytes) && there(one.dst, std::max<uint64_t>(one.dstNumBytes, 1)) &&
          there(one.dstActBytes, sizeof *one.dstActBytes))
        continue;
      if (failed) *failed = i;
      return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result =
        compared_copies().any() ? compared_copies().before_work(*target.context, stream) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    const auto lock =
        mirrors().any() ? mirrors().before_work(*target.context, stream, &result) : Mirrors::Lock();
    if (result != CUDA_SUCCESS) return result;
    // The index of the operation that the server's driver refuses is not reported: the error applies to the
    // whole batch.
    return rows::cuMemBatchDecompressAsync::at(target, {operations, count, flags, nullptr, stream});
  });
}

}  // namespace

CUDA_EXPORT CUresult cuMemBatchDecompressAsync(CUmemDecompressParams* operations, size_t count,
                                               unsigned int flags, size_t* failed, CUstream stream) {
  return decompress(operations, count, flags, failed, stream);
}
CUDA_EXPORT CUresult cuMemBatchDecompressAsync_ptsz(CUmemDecompressParams* operations, size_t count,
                                                    unsigned int flags, size_t* failed, CUstream stream) {
  return decompress(operations, count, flags, failed, or_per_thread(stream));
}
#endif
