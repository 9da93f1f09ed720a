#include "server/worker/handlers/guards.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "protocol/calls/box.h"
#include "protocol/calls/device_address.h"
#include "server/worker/handlers/array_guards.h"
#include "server/worker/handlers/multicast_guards.h"
#include "server/worker/handlers/stream_guards.h"
#include "server/worker/session/session.h"

namespace gpupool::worker::guards {
namespace {

#define REAL(name) t_session->guarded.name

bool owns(CUdeviceptr address, uint64_t size) {
  return t_session->memory.owns(address, size);
}

CUresult unload_module(CUmodule module) {
  // The module's context, whichever context is current.
  const ContextState* const context = t_session->table.resolved_in();
  return unload_after_kept_commands(context ? context->object : nullptr, 0,
                                    [module, real = REAL(cuModuleUnload)] { return real(module); });
}
#if CUDA_VERSION >= 12000
CUresult unload_library(CUlibrary library) {
  return unload_after_kept_commands(nullptr, 0,
                                    [library, real = REAL(cuLibraryUnload)] { return real(library); });
}
#endif

// Fills and copies within the device count as GPU work, like kernels.
template <class F>
CUresult work(CUstream stream, uint64_t bytes, F&& call) {
  StreamState* const state = t_session->contexts.find_stream(stream);
  return state ? t_session->compute.run(*state, transfer_kind(bytes), call) : call();
}

CUresult set_d8(CUdeviceptr address, unsigned char value, size_t count, CUstream stream) {
  return work(stream, count, [&] { return REAL(cuMemsetD8Async)(address, value, count, stream); });
}
CUresult set_d16(CUdeviceptr address, unsigned short value, size_t count, CUstream stream) {
  return work(stream, count * 2, [&] { return REAL(cuMemsetD16Async)(address, value, count, stream); });
}
CUresult set_d32(CUdeviceptr address, unsigned value, size_t count, CUstream stream) {
  return work(stream, count * 4, [&] { return REAL(cuMemsetD32Async)(address, value, count, stream); });
}
CUresult set_2d8(CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t rows,
                 CUstream stream) {
  return work(stream, width * rows,
              [&] { return REAL(cuMemsetD2D8Async)(address, pitch, value, width, rows, stream); });
}
CUresult set_2d16(CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t rows,
                  CUstream stream) {
  return work(stream, width * rows * 2,
              [&] { return REAL(cuMemsetD2D16Async)(address, pitch, value, width, rows, stream); });
}
CUresult set_2d32(CUdeviceptr address, size_t pitch, unsigned value, size_t width, size_t rows,
                  CUstream stream) {
  return work(stream, width * rows * 4,
              [&] { return REAL(cuMemsetD2D32Async)(address, pitch, value, width, rows, stream); });
}

// Returns contexts on the devices of both sides, because a copy must not depend on peer access. Returns false
// if both sides are on the stream's device, or if a device is unknown.
bool contexts_of(CUstream stream, CUdeviceptr to, CUdeviceptr from, CUcontext* to_context,
                 CUcontext* from_context) {
  const int to_device = t_session->memory.device_of(to), from_device = t_session->memory.device_of(from);
  const StreamState* const state = t_session->contexts.find_stream(stream);
  if (!state || to_device < 0 || from_device < 0 ||
      (to_device == from_device && to_device == state->context->device))
    return false;
  const ContextState* const there = t_session->contexts.find_on(to_device);
  const ContextState* const here = t_session->contexts.find_on(from_device);
  if (!there || !here) return false;
  *to_context = there->object;
  *from_context = here->object;
  return true;
}

CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return work(stream, size, [&] {
    CUcontext there = nullptr, here = nullptr;
    if (!REAL(cuMemcpyPeerAsync) || !contexts_of(stream, to, from, &there, &here))
      return REAL(cuMemcpyDtoDAsync_v2)(to, from, size, stream);
    return REAL(cuMemcpyPeerAsync)(to, there, from, here, size, stream);
  });
}
// Finds the session's context by the driver's handle; returns null if there is none.
ContextState* find_context(CUcontext object) {
  for (const auto& [handle, context] : t_session->contexts.all()) {
    if (context->object == object) return context.get();
  }
  return nullptr;
}
CUresult enable_peer(CUcontext peer, unsigned flags) {
  ContextState* const accessed = find_context(peer);
  ContextState* const accessing = t_session->contexts.current();
  if (!accessing || !accessed) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = REAL(cuCtxEnablePeerAccess)(peer, flags);
  if (result != CUDA_SUCCESS) return result;
  result = t_session->memory.allow_access(accessing->owner(), accessed->owner());
  if (result != CUDA_SUCCESS && REAL(cuCtxDisablePeerAccess)) (void)REAL(cuCtxDisablePeerAccess)(peer);
  return result;
}
CUresult disable_peer(CUcontext peer) {
  const CUresult result = REAL(cuCtxDisablePeerAccess)(peer);
  ContextState* const accessed = find_context(peer);
  ContextState* const accessing = t_session->contexts.current();
  if (result == CUDA_SUCCESS && accessing && accessed)
    t_session->memory.forbid_access(accessing->owner(), accessed->owner());
  return result;
}

CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                   size_t size, CUstream stream) {
  return work(stream, size,
              [&] { return REAL(cuMemcpyPeerAsync)(to, to_context, from, from_context, size, stream); });
}

bool is_device_side(CUmemorytype type) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

// Checks the extent of one side of a 2D or 3D copy, which starts at `x` bytes, `y` rows and `z` planes.
bool owns_box(CUdeviceptr address, uint64_t pitch, uint64_t height, uint64_t x, uint64_t y, uint64_t z,
              uint64_t width, uint64_t rows, uint64_t planes) {
  if (width == 0 || rows == 0 || planes == 0) return true;
  uint64_t plane = 0;
  uint64_t last = 0;
  uint64_t part = 0;
  if (__builtin_mul_overflow(pitch, height, &plane)) return false;
  if (__builtin_add_overflow(z, planes - 1, &last) || __builtin_mul_overflow(last, plane, &part))
    return false;
  uint64_t extent = part;
  if (__builtin_add_overflow(y, rows - 1, &last) || __builtin_mul_overflow(last, pitch, &part)) return false;
  if (__builtin_add_overflow(extent, part, &extent) || __builtin_add_overflow(extent, x, &extent) ||
      __builtin_add_overflow(extent, width, &extent)) {
    return false;
  }
  return owns(address, extent);
}

// One side of a 2D or 3D copy; check_end() changes it to values that are safe to pass to the driver.
struct BoxEnd {
  CUmemorytype& type;
  const void** host;
  CUdeviceptr& device;
  CUarray& array;
  uint64_t pitch, height, x, y, z;
};
template <class Copy>
CUresult check_end(const BoxEnd& end, const Copy& copy, uint64_t depth) {
  *end.host = nullptr;
  if (end.type == CU_MEMORYTYPE_ARRAY) {
    end.device = 0;
    return resolve_array(end.array) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  if (!is_device_side(end.type)) return CUDA_ERROR_NOT_SUPPORTED;
  end.type = CU_MEMORYTYPE_DEVICE;
  end.array = nullptr;
  // Pitch 0 is allowed for a single row.
  const bool owned = owns_box(end.device, end.pitch ? end.pitch : copy.WidthInBytes, end.height, end.x, end.y,
                              end.z, copy.WidthInBytes, copy.Height, depth);
  return owned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Converts a checked copy that involves memory of another device than the stream's. Returns nullopt if it
// does not, or if an array is involved.
std::optional<CUDA_MEMCPY3D_PEER> between_devices(CUstream stream, const CUDA_MEMCPY3D& copy) {
  CUDA_MEMCPY3D_PEER peers{};
  const bool memory =
      copy.dstMemoryType == CU_MEMORYTYPE_DEVICE && copy.srcMemoryType == CU_MEMORYTYPE_DEVICE;
  if (!memory || !REAL(cuMemcpy3DPeerAsync) ||
      !contexts_of(stream, copy.dstDevice, copy.srcDevice, &peers.dstContext, &peers.srcContext))
    return std::nullopt;
  cuda::set_box(peers, copy);
  return peers;
}

CUresult copy_2d(const CUDA_MEMCPY2D* asked, CUstream stream) {
  if (!asked) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D box = cuda::boxed(*asked);
  if (const CUresult result = check_copy(box); result != CUDA_SUCCESS) return result;
  CUDA_MEMCPY2D copy{};
  cuda::set_rectangle(copy, box);
  box.srcHeight = box.srcY + box.Height;
  box.dstHeight = box.dstY + box.Height;
  return work(stream, copy.WidthInBytes * copy.Height, [&] {
    const auto peers = between_devices(stream, box);
    return peers ? REAL(cuMemcpy3DPeerAsync)(&*peers, stream) : REAL(cuMemcpy2DAsync_v2)(&copy, stream);
  });
}
CUresult copy_3d(const CUDA_MEMCPY3D* asked, CUstream stream) {
  if (!asked) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D copy = *asked;
  if (const CUresult result = check_copy(copy); result != CUDA_SUCCESS) return result;
  return work(stream, copy.WidthInBytes * copy.Height * copy.Depth, [&] {
    const auto peers = between_devices(stream, copy);
    return peers ? REAL(cuMemcpy3DPeerAsync)(&*peers, stream) : REAL(cuMemcpy3DAsync_v2)(&copy, stream);
  });
}

constexpr int kFabric = 8;  // CU_MEM_HANDLE_TYPE_FABRIC, CUDA 12.3
bool plain_properties(const CUmemAllocationProp* properties) {
  return properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         (properties->requestedHandleTypes & ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | kFabric)) == 0 &&
         properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && !properties->win32HandleMetaData;
}
// Replaces the session's device number by the library's.
CUresult find_device(CUmemLocation& location) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_SUCCESS;
  const auto device = t_session->start.visible.find(location.id);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  location.id = *device;
  return CUDA_SUCCESS;
}
CUresult create_memory(CUmemGenericAllocationHandle* handle, size_t size,
                       const CUmemAllocationProp* properties, unsigned long long flags) {
  if (!plain_properties(properties)) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemAllocationProp found = *properties;
  if (const CUresult result = find_device(found.location); result != CUDA_SUCCESS) return result;
  return t_session->virtual_memory.create(handle, size, found, flags);
}
CUresult release_memory(CUmemGenericAllocationHandle handle) {
  return t_session->virtual_memory.release(handle);
}
// Reports the memory of the device, but no more than the tenant's quota.
CUresult memory_info(size_t* free, size_t* total) {
  if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
  t_session->memory.settle();
  const CUresult result = REAL(cuMemGetInfo_v2)(free, total);
  const ContextState* const context = t_session->contexts.current();
  if (result != CUDA_SUCCESS || !context) return result;
  if (const auto room = t_session->ledger.room(context->device)) {
    // With oversubscription, other sessions' memory can be moved to make room.
    const uint64_t used = t_session->ledger.used(context->device);
    if (t_session->start.oversubscribes) *free = *total > used ? *total - used : 0;
    *free = std::min<uint64_t>(*free, room->free);
    *total = std::min<uint64_t>(*total, room->limit);
  }
  return result;
}
CUresult set_limit(CUlimit limit, size_t value) {
  return t_session->memory_charges.set_limit(limit, value);
}
CUresult granularity(size_t* size, const CUmemAllocationProp* properties,
                     CUmemAllocationGranularity_flags option) {
  if (!plain_properties(properties)) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemAllocationProp found = *properties;
  if (const CUresult result = find_device(found.location); result != CUDA_SUCCESS) return result;
  found.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  return REAL(cuMemGetAllocationGranularity)(size, &found, option);
}
CUresult map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
  return t_session->virtual_memory.map(address, size, offset, handle, flags);
}
CUresult unmap(CUdeviceptr address, size_t size) {
  return t_session->virtual_memory.unmap(address, size);
}
CUresult set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count) {
  if (!access) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUmemAccessDesc> found(access, access + count);
  for (CUmemAccessDesc& one : found) {
    if (const CUresult result = find_device(one.location); result != CUDA_SUCCESS) return result;
  }
  const CUresult result = t_session->virtual_memory.set_access(address, size, found);
  if (result == CUDA_SUCCESS) t_session->memory.note_access(address, size, found);
  return result;
}
CUresult get_access(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  if (!location) return CUDA_ERROR_INVALID_VALUE;
  CUmemLocation found = *location;
  if (const CUresult result = find_device(found); result != CUDA_SUCCESS) return result;
  return REAL(cuMemGetAccess)(flags, &found, address);
}

#if CUDA_VERSION >= 12000
// The driver reads as many elements as the rank says. The row has checked the lengths of arrays that are
// present.
bool all_there(cuuint32_t rank, std::initializer_list<const void*> arrays) {
  return rank != 0 && std::find(arrays.begin(), arrays.end(), nullptr) == arrays.end();
}
CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* dim, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                      CUtensorMapFloatOOBfill fill) {
  if (!map || !all_there(rank, {dim, box, element_strides}) || (rank > 1 && !strides))
    return CUDA_ERROR_INVALID_VALUE;
  return REAL(cuTensorMapEncodeTiled)(map, type, rank, address, dim, strides, box, element_strides,
                                      interleave, swizzle, promotion, fill);
}
CUresult encode_im2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                       const cuuint64_t* dim, const cuuint64_t* strides, const int* lower, const int* upper,
                       cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (!map || !all_there(rank, {dim, strides, lower, upper, element_strides}))
    return CUDA_ERROR_INVALID_VALUE;
  return REAL(cuTensorMapEncodeIm2col)(map, type, rank, address, dim, strides, lower, upper, channels, pixels,
                                       element_strides, interleave, swizzle, promotion, fill);
}
#endif

#if CUDA_VERSION >= 12080
CUresult encode_im2col_wide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                            const cuuint64_t* dim, const cuuint64_t* strides, int lower, int upper,
                            cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
                            CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
                            CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                            CUtensorMapFloatOOBfill fill) {
  if (!map || !all_there(rank, {dim, strides, element_strides})) return CUDA_ERROR_INVALID_VALUE;
  return REAL(cuTensorMapEncodeIm2colWide)(map, type, rank, address, dim, strides, lower, upper, channels,
                                           pixels, element_strides, interleave, mode, swizzle, promotion,
                                           fill);
}

// The decompression engine writes as many bytes as the input yields, within the address space of this
// session's contexts, as a kernel could.
CUresult decompress(CUmemDecompressParams* operations, size_t count, unsigned flags, size_t* failed,
                    CUstream stream) {
  if (!operations) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes = 0;
  for (const CUmemDecompressParams& one : std::span(operations, count)) {
    const auto at = [](const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); };
    if (!owns(at(one.src), one.srcNumBytes) || !owns(at(one.dst), std::max<uint64_t>(one.dstNumBytes, 1)) ||
        !owns(at(one.dstActBytes), sizeof *one.dstActBytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // Each is within the session's memory, so the sum cannot overflow.
    bytes += one.srcNumBytes + one.dstNumBytes;
  }
  return work(stream, bytes,
              [&] { return REAL(cuMemBatchDecompressAsync)(operations, count, flags, failed, stream); });
}
#endif

struct Wrapper {
  std::string_view name;
  void* (*function)();  // returns the wrapper; its address is not a constant expression
};
#define WRAP(name, wrapper)                                                                 \
  {                                                                                         \
    #name, [] { return reinterpret_cast<void*>(static_cast<decltype(&::name)>(&wrapper)); } \
  }
constexpr Wrapper kWrappers[] = {
    WRAP(cuMemsetD8Async, set_d8),
    WRAP(cuMemsetD16Async, set_d16),
    WRAP(cuMemsetD32Async, set_d32),
    WRAP(cuMemsetD2D8Async, set_2d8),
    WRAP(cuMemsetD2D16Async, set_2d16),
    WRAP(cuMemsetD2D32Async, set_2d32),
    WRAP(cuMemcpyDtoDAsync_v2, copy),
    WRAP(cuMemcpyPeerAsync, copy_peer),
    WRAP(cuCtxEnablePeerAccess, enable_peer),
    WRAP(cuCtxDisablePeerAccess, disable_peer),
    WRAP(cuMemcpy2DAsync_v2, copy_2d),
    WRAP(cuMemcpy3DAsync_v2, copy_3d),
    WRAP(cuMemCreate, create_memory),
    WRAP(cuMemRelease, release_memory),
    WRAP(cuCtxSetLimit, set_limit),
    WRAP(cuMemGetAllocationGranularity, granularity),
    WRAP(cuMemGetInfo_v2, memory_info),
    WRAP(cuMemMap, map),
    WRAP(cuMemUnmap, unmap),
    WRAP(cuMemSetAccess, set_access),
    WRAP(cuMemGetAccess, get_access),
    WRAP(cuStreamWaitValue32_v2, wait_value32),
    WRAP(cuStreamWaitValue64_v2, wait_value64),
    WRAP(cuStreamBatchMemOp_v2, batch),
    WRAP(cuStreamSetAttribute, set_stream_attribute),
    WRAP(cuModuleUnload, unload_module),
#if CUDA_VERSION >= 12000
    WRAP(cuLibraryUnload, unload_library),
    WRAP(cuTensorMapEncodeTiled, encode_tiled),
    WRAP(cuTensorMapEncodeIm2col, encode_im2col),
#endif
#if CUDA_VERSION >= 12080
    WRAP(cuTensorMapEncodeIm2colWide, encode_im2col_wide),
    WRAP(cuMemBatchDecompressAsync, decompress),
#endif
#if CUDA_VERSION >= 12010
    WRAP(cuMulticastCreate, create_multicast),
    WRAP(cuMulticastAddDevice, add_multicast_device),
    WRAP(cuMulticastBindMem, bind_multicast_memory),
    WRAP(cuMulticastBindAddr, bind_multicast_address),
    WRAP(cuMulticastUnbind, unbind_multicast),
    WRAP(cuMulticastGetGranularity, multicast_granularity),
#endif
    WRAP(cuStreamCreate, create_stream),
    WRAP(cuStreamCreateWithPriority, create_stream_with_priority),
    WRAP(cuStreamDestroy_v2, destroy_stream),
    WRAP(cuStreamQuery, query_stream),
    WRAP(cuEventCreate, create_event),
    WRAP(cuEventRecord, record_event),
    WRAP(cuEventRecordWithFlags, record_event_with_flags),
    WRAP(cuStreamWaitEvent, wait_event),
    WRAP(cuEventQuery, query_event),
    WRAP(cuEventDestroy_v2, destroy_event),
    WRAP(cuArray3DCreate_v2, create_array),
    WRAP(cuMipmappedArrayCreate, create_mipmapped_array),
    WRAP(cuTexObjectCreate, create_texture),
    WRAP(cuTexObjectDestroy, destroy_texture),
    WRAP(cuSurfObjectCreate, create_surface),
    WRAP(cuSurfObjectDestroy, destroy_surface),
    WRAP(cuTexRefCreate, create_reference),
    WRAP(cuTexRefDestroy, destroy_reference),
    WRAP(cuTexRefSetArray, bind_array),
    WRAP(cuTexRefSetMipmappedArray, bind_mipmapped_array),
    WRAP(cuSurfRefSetArray, bind_surface),
    WRAP(cuTexRefSetAddress2D_v3, bind_rows),
};
#undef WRAP

constexpr const Wrapper* find_wrapper(std::string_view name) {
  for (const Wrapper& wrapper : kWrappers) {
    if (wrapper.name == name) return &wrapper;
  }
  return nullptr;
}

namespace rows {
using namespace cuda::role;
using cuda::Kind;
#define CUDA_CALL(id, name, mode, ...)                                    \
  static_assert(!cuda::kNeedsWrapper<__VA_ARGS__> || find_wrapper(#name), \
                #name ": a row with guarded_device_address needs a wrapper in kWrappers");
#define CUDA_CALL_CUSTOM_EXPORT CUDA_CALL
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
}  // namespace rows

}  // namespace

CUresult unload_after_kept_commands(CUcontext context, uint64_t handle, PostponedUnloads::Unload unload) {
  Session& session = *t_session;
  if (session.code.postponed_unloads.full() || (!session.graphs.launching() && session.backlog.empty()))
    return unload();
  session.code.postponed_unloads.add(context, handle, std::move(unload));
  return CUDA_SUCCESS;
}

CUresult check_copy(CUDA_MEMCPY3D& copy) {
  if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  copy.reserved0 = copy.reserved1 = nullptr;
  const void* host = nullptr;
  const CUresult result =
      check_end({copy.srcMemoryType, &copy.srcHost, copy.srcDevice, copy.srcArray, copy.srcPitch,
                 copy.srcHeight ? copy.srcHeight : copy.Height, copy.srcXInBytes, copy.srcY, copy.srcZ},
                copy, copy.Depth);
  copy.dstHost = nullptr;
  if (result != CUDA_SUCCESS) return result;
  return check_end({copy.dstMemoryType, &host, copy.dstDevice, copy.dstArray, copy.dstPitch,
                    copy.dstHeight ? copy.dstHeight : copy.Height, copy.dstXInBytes, copy.dstY, copy.dstZ},
                   copy, copy.Depth);
}

void Calls::load(const SymbolLookup& symbol) {
#define GPUPOOL_LOAD(name) name = reinterpret_cast<decltype(&::name)>(symbol(#name));
  GPUPOOL_GUARDED_CALLS(GPUPOOL_LOAD)
  GPUPOOL_GUARDED_CALLS_12_0(GPUPOOL_LOAD)
  GPUPOOL_GUARDED_CALLS_12_1(GPUPOOL_LOAD)
  GPUPOOL_GUARDED_CALLS_12_8(GPUPOOL_LOAD)
#undef GPUPOOL_LOAD
}

void* Calls::wrapper(std::string_view name) const {
  const Wrapper* const wrapper = find_wrapper(name);
  return wrapper ? wrapper->function() : nullptr;
}

}  // namespace gpupool::worker::guards
