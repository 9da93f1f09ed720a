// Copies of rows and boxes (2D, 3D) between memory and arrays.
#include "protocol/calls/box.h"
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/api/copy.h"
#include "server/softgpu/runtime/array.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

struct End {
  uint64_t address = 0;
  Side side = Side::host;
  Ref<Array> array;
};

// Selects the pointer that the descriptor's memory type refers to.
CUresult resolve(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array, End& end) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      end = {reinterpret_cast<uint64_t>(host), Side::host, nullptr};
      return CUDA_SUCCESS;
    case CU_MEMORYTYPE_DEVICE: end = {device, Side::device, nullptr}; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_UNIFIED: end = {device, Side::any, nullptr}; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_ARRAY:
      end = {0, Side::device, find<Array>(array)};
      if (!end.array) return CUDA_ERROR_INVALID_HANDLE;
      end.address = end.array->level().address;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

// True if the box consists of whole texels and lies in the array.
bool inside(const Array& array, uint64_t x, uint64_t y, uint64_t z, uint64_t width, uint64_t height,
            uint64_t depth) {
  const auto part = [](uint64_t first, uint64_t count, uint64_t of) {
    return first <= of && count <= of - first;
  };
  const uint32_t texel = array.format().bytes();
  return x % texel == 0 && width % texel == 0 && part(x, width, array.level().pitch) &&
         part(y, height, array.level().height) && part(z, depth, array.slices());
}

// Offsets and pitches come from the program: values that could overflow in computations are rejected.
bool below_limit(uint64_t value) {
  return value < 1ull << 46;
}

bool place(uint64_t base, uint64_t x, uint64_t y, uint64_t z, uint64_t pitch, uint64_t slice, uint64_t width,
           uint64_t height, uint64_t depth, uint64_t& address) {
  if (!below_limit(x) || !below_limit(y) || !below_limit(z) || !below_limit(pitch) || !below_limit(slice) ||
      !below_limit(height) || !below_limit(depth))
    return false;
  uint64_t rows, slices, extent;
  if (__builtin_mul_overflow(y + height, pitch, &rows) || __builtin_mul_overflow(z + depth, slice, &slices) ||
      __builtin_add_overflow(rows, slices, &extent) || !below_limit(extent)) {
    return false;
  }
  if (height > 1 && pitch < x + width) return false;
  address = base + z * slice + y * pitch + x;
  return true;
}

bool size_fits(const Transfer& transfer) {
  uint64_t bytes;
  return !__builtin_mul_overflow(transfer.width, transfer.height, &bytes) &&
         !__builtin_mul_overflow(bytes, transfer.depth, &bytes) && below_limit(bytes);
}

// The contexts whose devices access each side; null: the stream's.
struct AccessingContexts {
  Ref<Context> destination, source;
};

CUresult run(const Transfer& transfer, Side destination, Side source, CUstream handle, bool wait,
             const AccessingContexts& accessing) {
  if (!size_fits(transfer)) return CUDA_ERROR_INVALID_VALUE;
  return call_on_stream(handle, [&](Stream& stream) {
    const auto device_of = [&](const Ref<Context>& copier) {
      return accessing_device(copier ? *copier : stream.context());
    };
    const CUresult result = check_transfer(transfer, destination, source, device_of(accessing.destination),
                                           device_of(accessing.source));
    if (result != CUDA_SUCCESS) return result;
    return wait ? transfer_synchronously(stream, transfer) : transfer_async(stream, transfer);
  });
}

}  // namespace

namespace gpupool::softgpu::api {

CUresult describe_copy(const CUDA_MEMCPY3D* copy, Transfer* described, Side* destination_side,
                       Side* source_side) {
  if (copy == nullptr || copy->srcLOD != 0 || copy->dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  End source, destination;
  CUresult result = resolve(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray, source);
  if (result == CUDA_SUCCESS)
    result = resolve(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray, destination);
  if (result != CUDA_SUCCESS) return result;
  if (!below_limit(copy->WidthInBytes)) return CUDA_ERROR_INVALID_VALUE;
  Transfer transfer;
  transfer.width = copy->WidthInBytes;
  transfer.height = copy->Height;
  transfer.depth = copy->Depth;
  const auto pitch_of = [&](size_t pitch, size_t x) { return pitch != 0 ? pitch : x + copy->WidthInBytes; };
  const auto slice_of = [&](size_t height, size_t y, uint64_t pitch) {
    return below_limit(height) && below_limit(y) && below_limit(copy->Height) && below_limit(pitch)
               ? static_cast<uint64_t>((height != 0 ? height : y + copy->Height)) * pitch
               : UINT64_MAX;
  };
  transfer.source_pitch = pitch_of(copy->srcPitch, copy->srcXInBytes);
  transfer.source_slice = slice_of(copy->srcHeight, copy->srcY, transfer.source_pitch);
  transfer.destination_pitch = pitch_of(copy->dstPitch, copy->dstXInBytes);
  transfer.destination_slice = slice_of(copy->dstHeight, copy->dstY, transfer.destination_pitch);
  if (source.array) {
    if (!inside(*source.array, copy->srcXInBytes, copy->srcY, copy->srcZ, copy->WidthInBytes, copy->Height,
                copy->Depth))
      return CUDA_ERROR_INVALID_VALUE;
    transfer.source_pitch = source.array->level().pitch;
    transfer.source_slice = source.array->level().slice;
  }
  if (destination.array) {
    if (!inside(*destination.array, copy->dstXInBytes, copy->dstY, copy->dstZ, copy->WidthInBytes,
                copy->Height, copy->Depth))
      return CUDA_ERROR_INVALID_VALUE;
    transfer.destination_pitch = destination.array->level().pitch;
    transfer.destination_slice = destination.array->level().slice;
  }
  if (!place(source.address, copy->srcXInBytes, copy->srcY, copy->srcZ, transfer.source_pitch,
             transfer.source_slice, transfer.width, transfer.height, transfer.depth, transfer.source) ||
      !place(destination.address, copy->dstXInBytes, copy->dstY, copy->dstZ, transfer.destination_pitch,
             transfer.destination_slice, transfer.width, transfer.height, transfer.depth,
             transfer.destination)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!size_fits(transfer)) return CUDA_ERROR_INVALID_VALUE;
  *described = transfer;
  *destination_side = destination.side;
  *source_side = source.side;
  return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu::api

namespace {

CUresult copy_3d(const CUDA_MEMCPY3D* copy, CUstream stream, bool wait,
                 const AccessingContexts& accessing = {}) {
  Transfer transfer;
  Side destination, source;
  const CUresult result = describe_copy(copy, &transfer, &destination, &source);
  return result != CUDA_SUCCESS ? result : run(transfer, destination, source, stream, wait, accessing);
}

CUresult copy_2d(const CUDA_MEMCPY2D* copy, CUstream stream, bool wait) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY3D box = gpupool::cuda::boxed(*copy);
  return copy_3d(&box, stream, wait);
}

}  // namespace

CUresult gpupool::cuda::copy_box_between(const CUDA_MEMCPY3D& copy, CUcontext to, CUcontext from,
                                         CUstream stream, bool wait) {
  return copy_3d(&copy, stream, wait, {find<Context>(to), find<Context>(from)});
}

CUDA_EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  return copy_2d(copy, nullptr, true);
}
CUDA_EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
  return copy_2d(copy, nullptr, true);
}
CUDA_EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy_2d(copy, stream, false);
}
CUDA_EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  return copy_3d(copy, nullptr, true);
}
CUDA_EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy_3d(copy, stream, false);
}
