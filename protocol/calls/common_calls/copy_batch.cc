// Batches of copies. CUDA leaves the order of copies within a batch open, so each is an ordinary copy, in the
// stream's order.
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "protocol/driver/exports.h"

#if CUDA_VERSION >= 12080
namespace {

// The legacy default stream is rejected, as documented.
bool allowed(CUstream stream) {
  return stream != nullptr && stream != CU_STREAM_LEGACY;
}

bool valid(CUmemcpySrcAccessOrder order) {
  return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

bool valid(size_t count, const CUmemcpyAttributes* attributes, const size_t* indices,
           size_t attribute_count) {
  if (!attributes || !indices || attribute_count == 0 || attribute_count > count || indices[0] != 0)
    return false;
  for (size_t i = 0; i < attribute_count; ++i) {
    if (!valid(attributes[i].srcAccessOrder) || indices[i] >= count ||
        (i > 0 && indices[i] <= indices[i - 1]))
      return false;
  }
  return true;
}

bool is_on_host(CUdeviceptr address) {
  unsigned type = 0;
  return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS ||
         type == CU_MEMORYTYPE_HOST;
}

// A copy reads pinned memory when the stream gets there, and other host memory before the call returns. So a
// source that must be read during the call is first copied to ordinary memory.
CUresult copy_one(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpySrcAccessOrder order,
                  CUstream stream) {
  if (order != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL || !is_on_host(from) || is_on_host(to)) {
    return cuMemcpyAsync(to, from, bytes, stream);
  }
  const std::unique_ptr<std::byte[]> taken(new (std::nothrow) std::byte[bytes]);
  if (!taken) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memcpy(taken.get(), reinterpret_cast<const void*>(static_cast<uintptr_t>(from)), bytes);
  return cuMemcpyAsync(to, reinterpret_cast<uintptr_t>(taken.get()), bytes, stream);
}

CUresult copy_batch(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* sizes, size_t count,
                    const CUmemcpyAttributes* attributes, const size_t* indices, size_t attribute_count,
                    size_t* failed, CUstream stream) {
  if (failed) *failed = SIZE_MAX;
  if (!allowed(stream)) return CUDA_ERROR_INVALID_VALUE;
  CUstreamCaptureStatus status{};
  if (const CUresult result = cuStreamIsCapturing(stream, &status); result != CUDA_SUCCESS) return result;
  if (count == 0 || !to || !from || !sizes || !valid(count, attributes, indices, attribute_count))
    return CUDA_ERROR_INVALID_VALUE;
  size_t attribute = 0;
  for (size_t i = 0; i < count; ++i) {
    if (attribute + 1 < attribute_count && indices[attribute + 1] == i) ++attribute;
    const CUresult result =
        sizes[i] == 0 ? CUDA_ERROR_INVALID_VALUE
                      : copy_one(to[i], from[i], sizes[i], attributes[attribute].srcAccessOrder, stream);
    if (result == CUDA_SUCCESS) continue;
    if (failed) *failed = i;
    return result;
  }
  return CUDA_SUCCESS;
}

// Bytes of an array's element; 0: not an array, or an unsupported format.
size_t element_bytes(CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR about{};
  if (cuArray3DGetDescriptor_v2(&about, array) != CUDA_SUCCESS) return 0;
  switch (about.Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return about.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return size_t{2} * about.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return size_t{4} * about.NumChannels;
    default: return 0;
  }
}

struct Side {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  CUdeviceptr address = 0;
  CUarray array = nullptr;
  size_t pitch = 0, height = 0;
  CUoffset3D offset{};
};

CUresult describe(const CUmemcpy3DOperand& operand, const CUextent3D& extent, size_t element, Side* side) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    side->type = CU_MEMORYTYPE_ARRAY;
    side->array = operand.op.array.array;
    side->offset = operand.op.array.offset;
    return CUDA_SUCCESS;
  }
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_ERROR_INVALID_VALUE;
  const auto& pointer = operand.op.ptr;
  if ((pointer.rowLength != 0 && pointer.rowLength < extent.width) ||
      (pointer.layerHeight != 0 && pointer.layerHeight < extent.height)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  side->address = pointer.ptr;
  if (__builtin_mul_overflow(pointer.rowLength, element, &side->pitch)) return CUDA_ERROR_INVALID_VALUE;
  side->height = pointer.layerHeight;
  return CUDA_SUCCESS;
}

CUresult describe(const CUDA_MEMCPY3D_BATCH_OP& asked, CUDA_MEMCPY3D* copy) {
  if (!valid(asked.srcAccessOrder) || asked.extent.width == 0 || asked.extent.height == 0 ||
      asked.extent.depth == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool from_array = asked.src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY,
             to_array = asked.dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
  const size_t from_element = from_array ? element_bytes(asked.src.op.array.array) : 0;
  const size_t to_element = to_array ? element_bytes(asked.dst.op.array.array) : 0;
  if ((from_array && from_element == 0) || (to_array && to_element == 0) ||
      (from_array && to_array && from_element != to_element)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t element = from_array ? from_element : to_array ? to_element : 1;
  Side from, to;
  if (const CUresult result = describe(asked.src, asked.extent, element, &from); result != CUDA_SUCCESS)
    return result;
  if (const CUresult result = describe(asked.dst, asked.extent, element, &to); result != CUDA_SUCCESS)
    return result;
  *copy = {};
  copy->srcMemoryType = from.type;
  copy->srcDevice = from.address;
  copy->srcArray = from.array;
  copy->srcPitch = from.pitch;
  copy->srcHeight = from.height;
  copy->srcXInBytes = from.offset.x * element;
  copy->srcY = from.offset.y;
  copy->srcZ = from.offset.z;
  copy->dstMemoryType = to.type;
  copy->dstDevice = to.address;
  copy->dstArray = to.array;
  copy->dstPitch = to.pitch;
  copy->dstHeight = to.height;
  copy->dstXInBytes = to.offset.x * element;
  copy->dstY = to.offset.y;
  copy->dstZ = to.offset.z;
  copy->Height = asked.extent.height;
  copy->Depth = asked.extent.depth;
  return __builtin_mul_overflow(asked.extent.width, element, &copy->WidthInBytes) ? CUDA_ERROR_INVALID_VALUE
                                                                                  : CUDA_SUCCESS;
}

CUresult copy_3d_batch(size_t count, const CUDA_MEMCPY3D_BATCH_OP* copies, size_t* failed,
                       unsigned long long flags, CUstream stream) {
  if (failed) *failed = SIZE_MAX;
  if (!allowed(stream)) return CUDA_ERROR_INVALID_VALUE;
  CUstreamCaptureStatus status{};
  if (const CUresult result = cuStreamIsCapturing(stream, &status); result != CUDA_SUCCESS) return result;
  if (count == 0 || !copies || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    CUDA_MEMCPY3D copy;
    CUresult result = describe(copies[i], &copy);
    if (result == CUDA_SUCCESS) result = cuMemcpy3DAsync_v2(&copy, stream);
    const bool now = copies[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    // Pinned rows that must have been read when the call returns.
    if (result == CUDA_SUCCESS && now && copy.srcMemoryType == CU_MEMORYTYPE_UNIFIED &&
        is_on_host(copy.srcDevice) && status == CU_STREAM_CAPTURE_STATUS_NONE) {
      result = cuStreamSynchronize(stream);
    }
    if (result == CUDA_SUCCESS) continue;
    if (failed) *failed = i;
    return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

#define BATCH                                                                                      \
  CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, \
      size_t *indices, size_t attribute_count
#define BATCH_GIVEN to, from, sizes, count, attributes, indices, attribute_count

CUDA_EXPORT CUresult cuMemcpyBatchAsync(BATCH, size_t* failed, CUstream stream) {
  return copy_batch(BATCH_GIVEN, failed, stream);
}
CUDA_EXPORT CUresult cuMemcpyBatchAsync_ptsz(BATCH, size_t* failed, CUstream stream) {
  return copy_batch(BATCH_GIVEN, failed, or_per_thread(stream));
}
CUDA_EXPORT CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies, size_t* failed,
                                          unsigned long long flags, CUstream stream) {
  return copy_3d_batch(count, copies, failed, flags, stream);
}
CUDA_EXPORT CUresult cuMemcpy3DBatchAsync_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies, size_t* failed,
                                               unsigned long long flags, CUstream stream) {
  return copy_3d_batch(count, copies, failed, flags, or_per_thread(stream));
}
#if CUDA_VERSION >= 13000
CUDA_EXPORT CUresult cuMemcpyBatchAsync_v2(BATCH, CUstream stream) {
  return copy_batch(BATCH_GIVEN, nullptr, stream);
}
CUDA_EXPORT CUresult cuMemcpyBatchAsync_v2_ptsz(BATCH, CUstream stream) {
  return copy_batch(BATCH_GIVEN, nullptr, or_per_thread(stream));
}
CUDA_EXPORT CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies,
                                             unsigned long long flags, CUstream stream) {
  return copy_3d_batch(count, copies, nullptr, flags, stream);
}
CUDA_EXPORT CUresult cuMemcpy3DBatchAsync_v2_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies,
                                                  unsigned long long flags, CUstream stream) {
  return copy_3d_batch(count, copies, nullptr, flags, or_per_thread(stream));
}
#endif
#endif
