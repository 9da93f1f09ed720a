#include "server/worker/memory/scrubber.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "protocol/calls/array_bytes.h"

namespace gpupool::worker {
namespace {

CUDA_MEMCPY3D copy_of(const Scrubber::Box& box) {
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = box.width;
  copy.Height = box.height;
  copy.Depth = box.depth;
  return copy;
}

}  // namespace

CUresult Scrubber::make_stream(ContextState& context) {
  return context.scrubbing ? CUDA_SUCCESS : api_.cuStreamCreate(&context.scrubbing, CU_STREAM_NON_BLOCKING);
}

CUresult Scrubber::run(int device, const Work& work) {
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
  // The client has no context on the device yet.
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

bool Scrubber::can_order_streams(int device) const {
  const ContextState* const context = contexts_.current();
  return contexts_.all().size() == 1 && context && context->device == device && api_.cuStreamCreate;
}

CUresult Scrubber::start_clear(CUdeviceptr address, uint64_t size) {
  if (api_.zeroes_memory) return CUDA_SUCCESS;
  if (!api_.cuMemsetD8Async) return CUDA_ERROR_NOT_SUPPORTED;
  ContextState& context = *contexts_.current();
  const VisitContext visit(api_, context.object);
  CUresult result = visit.result();
  if (result == CUDA_SUCCESS) result = make_stream(context);
  if (result == CUDA_SUCCESS) result = api_.cuMemsetD8Async(address, 0, size, context.scrubbing);
  return result == CUDA_SUCCESS ? contexts_.order_all_after_clear(context.scrubbing) : result;
}

CUresult Scrubber::copy_out(std::byte* to, CUdeviceptr from, uint64_t size, int device) {
  return run(device, [&](CUstream stream) { return api_.cuMemcpyDtoHAsync_v2(to, from, size, stream); });
}

CUresult Scrubber::copy_in(CUdeviceptr to, const std::byte* from, uint64_t size, int device) {
  return run(device, [&](CUstream stream) { return api_.cuMemcpyHtoDAsync_v2(to, from, size, stream); });
}

Scrubber::Box Scrubber::box_of(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return {.width = shape.Width * cuda::texel_bytes(shape.Format, shape.NumChannels),
          .height = std::max<uint64_t>(shape.Height, 1),
          .depth = std::max<uint64_t>(shape.Depth, 1)};
}

CUresult Scrubber::copy_out(std::byte* to, CUarray from, const CUDA_ARRAY3D_DESCRIPTOR& shape, int device) {
  return copy_out(to, from, box_of(shape), device);
}

CUresult Scrubber::copy_in(CUarray to, const std::byte* from, const CUDA_ARRAY3D_DESCRIPTOR& shape,
                           int device) {
  return copy_in(to, from, box_of(shape), device);
}

CUresult Scrubber::copy_out(std::byte* to, CUarray from, const Box& box, int device) {
  if (!api_.cuMemcpy3DAsync_v2) return CUDA_ERROR_NOT_SUPPORTED;
  CUDA_MEMCPY3D copy = copy_of(box);
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = from;
  copy.srcXInBytes = box.x;
  copy.srcY = box.y;
  copy.srcZ = box.z;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = to;
  copy.dstPitch = copy.WidthInBytes;
  copy.dstHeight = copy.Height;
  return run(device, [&](CUstream stream) { return api_.cuMemcpy3DAsync_v2(&copy, stream); });
}

CUresult Scrubber::copy_in(CUarray to, const std::byte* from, const Box& box, int device) {
  if (!api_.cuMemcpy3DAsync_v2) return CUDA_ERROR_NOT_SUPPORTED;
  CUDA_MEMCPY3D copy = copy_of(box);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.srcPitch = copy.WidthInBytes;
  copy.srcHeight = copy.Height;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = to;
  copy.dstXInBytes = box.x;
  copy.dstY = box.y;
  copy.dstZ = box.z;
  return run(device, [&](CUstream stream) { return api_.cuMemcpy3DAsync_v2(&copy, stream); });
}

CUresult Scrubber::map_somewhere(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location,
                                 CUdeviceptr* place) {
  if (!api_.cuMemAddressReserve || !api_.cuMemAddressFree || !api_.cuMemMap || !api_.cuMemUnmap ||
      !api_.cuMemSetAccess) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUresult result = api_.cuMemAddressReserve(place, size, 0, 0, 0);
  if (result != CUDA_SUCCESS) return result;
  result = api_.cuMemMap(*place, size, 0, memory, 0);
  if (result == CUDA_SUCCESS) {
    const CUmemAccessDesc access{location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result = api_.cuMemSetAccess(*place, size, &access, 1);
    if (result != CUDA_SUCCESS) api_.cuMemUnmap(*place, size);
  }
  if (result != CUDA_SUCCESS) api_.cuMemAddressFree(*place, size);
  return result;
}

void Scrubber::unmap_there(CUdeviceptr place, uint64_t size) {
  api_.cuMemUnmap(place, size);
  api_.cuMemAddressFree(place, size);
}

CUresult Scrubber::visit_unmapped(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location,
                                  const std::function<CUresult(CUdeviceptr)>& visit) {
  CUdeviceptr place = 0;
  CUresult result = map_somewhere(memory, size, location, &place);
  if (result != CUDA_SUCCESS) return result;
  result = visit(place);
  unmap_there(place, size);
  return result;
}

void Scrubber::leave(ContextState& context) {
  finish_all();
  contexts_.forget_clears(context);
  if (const CUstream stream = std::exchange(context.scrubbing, nullptr)) api_.cuStreamDestroy_v2(stream);
  if (void* const zeros = std::exchange(context.zeros, nullptr)) api_.cuMemFreeHost(zeros);
}

}  // namespace gpupool::worker
