#include "server/worker/scrubber.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "protocol/cuda/array_bytes.h"

namespace gpupool::worker {
namespace {

CUDA_MEMCPY3D whole(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = shape.Width * cuda::texel_bytes(shape.Format, shape.NumChannels);
  copy.Height = std::max<size_t>(shape.Height, 1);
  copy.Depth = std::max<size_t>(shape.Depth, 1);
  return copy;
}

}  // namespace

CUresult Scrubber::make_stream(ContextState& context) {
  return context.scrubbing ? CUDA_SUCCESS : api_.cuStreamCreate(&context.scrubbing, CU_STREAM_NON_BLOCKING);
}

template <class Work>
CUresult Scrubber::run(int device, Work&& work) {
  if (!api_.cuStreamCreate) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult result = contexts_.await_clears(); result != CUDA_SUCCESS) return result;
  const auto finish = [&](CUstream stream) {
    const CUresult result = work(stream);
    return result == CUDA_SUCCESS ? api_.cuStreamSynchronize(stream) : result;
  };
  if (ContextState* const context = contexts_.find_on(device)) {
    const VisitContext visit(api_, context->object);
    if (visit.result() != CUDA_SUCCESS) return visit.result();
    const CUresult made = make_stream(*context);
    return made == CUDA_SUCCESS ? finish(context->scrubbing) : made;
  }
  // The client has no context there yet.
  CUcontext primary = nullptr;
  CUresult result = api_.cuDevicePrimaryCtxRetain(&primary, device);
  if (result != CUDA_SUCCESS) return result;
  {
    const VisitContext visit(api_, primary);
    CUstream stream = nullptr;
    result = visit.result();
    if (result == CUDA_SUCCESS) result = api_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS) {
      result = finish(stream);
      api_.cuStreamDestroy_v2(stream);
    }
  }
  api_.cuDevicePrimaryCtxRelease_v2(device);
  return result;
}

CUresult Scrubber::clear(CUdeviceptr address, uint64_t size, int device) {
  if (api_.zeroes_memory) return CUDA_SUCCESS;
  if (!api_.cuMemsetD8Async) return CUDA_ERROR_NOT_SUPPORTED;
  return run(device, [&](CUstream stream) { return api_.cuMemsetD8Async(address, 0, size, stream); });
}

CUresult Scrubber::start_clear(CUdeviceptr address, uint64_t size, int device) {
  if (api_.zeroes_memory) return CUDA_SUCCESS;
  ContextState* const context = contexts_.current();
  const bool alone = contexts_.all().size() == 1 && context && context->device == device;
  if (!alone || !api_.cuMemsetD8Async || !api_.cuStreamCreate) return clear(address, size, device);
  const VisitContext visit(api_, context->object);
  CUresult result = visit.result();
  if (result == CUDA_SUCCESS) result = make_stream(*context);
  if (result == CUDA_SUCCESS) result = api_.cuMemsetD8Async(address, 0, size, context->scrubbing);
  return result == CUDA_SUCCESS ? contexts_.order_all_after_clear(context->scrubbing) : result;
}

// From zeros in host memory, since no copy within the device has to be waited for by anybody else then.
CUresult Scrubber::clear(CUarray array, const CUDA_ARRAY3D_DESCRIPTOR& shape, int device) {
  if (api_.zeroes_memory) return CUDA_SUCCESS;
  if (!api_.cuMemcpy3DAsync_v2) return CUDA_ERROR_NOT_SUPPORTED;
  constexpr size_t kMost = 4u << 20;  // no row is longer
  static const std::vector<std::byte> zeros(kMost);
  const size_t row = shape.Width * cuda::texel_bytes(shape.Format, shape.NumChannels);
  const size_t height = std::max<size_t>(shape.Height, 1), depth = std::max<size_t>(shape.Depth, 1);
  if (row == 0 || row > kMost) return CUDA_ERROR_INVALID_VALUE;
  const size_t rows = std::min(height, kMost / row);                          // of a copy
  const size_t slices = rows == height ? std::min(depth, kMost / (row * height)) : 1;
  return run(device, [&](CUstream stream) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = zeros.data();
    copy.srcPitch = copy.WidthInBytes = row;
    copy.srcHeight = rows;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    for (copy.dstZ = 0; copy.dstZ < depth; copy.dstZ += slices) {
      copy.Depth = std::min(slices, depth - copy.dstZ);
      for (copy.dstY = 0; copy.dstY < height; copy.dstY += rows) {
        copy.Height = std::min(rows, height - copy.dstY);
        const CUresult result = api_.cuMemcpy3DAsync_v2(&copy, stream);
        if (result != CUDA_SUCCESS) return result;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult Scrubber::copy_out(std::byte* to, CUdeviceptr from, uint64_t size, int device) {
  return run(device, [&](CUstream stream) { return api_.cuMemcpyDtoHAsync_v2(to, from, size, stream); });
}

CUresult Scrubber::copy_in(CUdeviceptr to, const std::byte* from, uint64_t size, int device) {
  return run(device, [&](CUstream stream) { return api_.cuMemcpyHtoDAsync_v2(to, from, size, stream); });
}

CUresult Scrubber::copy_out(std::byte* to, CUarray from, const CUDA_ARRAY3D_DESCRIPTOR& shape, int device) {
  if (!api_.cuMemcpy3DAsync_v2) return CUDA_ERROR_NOT_SUPPORTED;
  CUDA_MEMCPY3D copy = whole(shape);
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = from;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = to;
  copy.dstPitch = copy.WidthInBytes;
  copy.dstHeight = copy.Height;
  return run(device, [&](CUstream stream) { return api_.cuMemcpy3DAsync_v2(&copy, stream); });
}

CUresult Scrubber::copy_in(CUarray to, const std::byte* from, const CUDA_ARRAY3D_DESCRIPTOR& shape, int device) {
  if (!api_.cuMemcpy3DAsync_v2) return CUDA_ERROR_NOT_SUPPORTED;
  CUDA_MEMCPY3D copy = whole(shape);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.srcPitch = copy.WidthInBytes;
  copy.srcHeight = copy.Height;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = to;
  return run(device, [&](CUstream stream) { return api_.cuMemcpy3DAsync_v2(&copy, stream); });
}

CUresult Scrubber::clear_unmapped(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location) {
  if (api_.zeroes_memory) return CUDA_SUCCESS;
  return visit_unmapped(memory, size, location, [&](CUdeviceptr place) { return clear(place, size, location.id); });
}

CUresult Scrubber::visit_unmapped(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location,
                                  const std::function<CUresult(CUdeviceptr)>& visit) {
  if (!api_.cuMemAddressReserve || !api_.cuMemAddressFree || !api_.cuMemMap || !api_.cuMemUnmap || !api_.cuMemSetAccess) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUdeviceptr place = 0;
  CUresult result = api_.cuMemAddressReserve(&place, size, 0, 0, 0);
  if (result != CUDA_SUCCESS) return result;
  result = api_.cuMemMap(place, size, 0, memory, 0);
  if (result == CUDA_SUCCESS) {
    const CUmemAccessDesc access{location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result = api_.cuMemSetAccess(place, size, &access, 1);
    if (result == CUDA_SUCCESS) result = visit(place);
    api_.cuMemUnmap(place, size);
  }
  api_.cuMemAddressFree(place, size);
  return result;
}

void Scrubber::leave(ContextState& context) {
  contexts_.forget_clears(context);
  if (const CUstream stream = std::exchange(context.scrubbing, nullptr)) api_.cuStreamDestroy_v2(stream);
}

}  // namespace gpupool::worker
