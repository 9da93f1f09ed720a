// Wrappers for rows whose arguments the driver would trust too far (structs with addresses and host pointers,
// objects that a wait thread still uses), for rows that count as GPU work, and for rows whose reply must not
// overtake earlier data. A wrapper has the signature of the driver's function, and the row calls it instead.
// The row checks device addresses that are parameters before that, by their roles
// (protocol/calls/device_address.h). Executor's thread only.
#pragma once
#include <span>
#include <string_view>

#include "protocol/driver/cuda_header.h"
#include "server/worker/images/postponed_unloads.h"
#include "server/worker/session/session_start.h"
#include "server/worker/session/thread_activity.h"

// clang-format off
#define GPUPOOL_GUARDED_CALLS(X)                                                                                   \
  X(cuMemsetD8Async) X(cuMemsetD16Async) X(cuMemsetD32Async) X(cuMemsetD2D8Async) X(cuMemsetD2D16Async)            \
  X(cuMemsetD2D32Async) X(cuMemcpyDtoDAsync_v2) X(cuMemcpy2DAsync_v2) X(cuMemcpy3DAsync_v2) X(cuMemcpyPeerAsync) X(cuMemcpy3DPeerAsync) \
  X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAccess)                     \
  X(cuMemGetAllocationGranularity) X(cuCtxSetLimit) X(cuStreamCreate) X(cuStreamCreateWithPriority)                \
  X(cuStreamDestroy_v2) X(cuStreamQuery) X(cuStreamWaitValue32_v2) X(cuStreamWaitValue64_v2)                       \
  X(cuStreamBatchMemOp_v2) X(cuEventDestroy_v2)                                                                    \
  X(cuStreamWaitEvent) X(cuEventQuery) X(cuMemGetInfo_v2) X(cuStreamSetAttribute) X(cuArray3DCreate_v2) X(cuMipmappedArrayCreate) X(cuTexObjectCreate)              \
  X(cuTexObjectDestroy) X(cuSurfObjectCreate) X(cuSurfObjectDestroy) X(cuTexRefSetAddress2D_v3) \
  X(cuEventCreate) X(cuEventRecord) X(cuEventRecordWithFlags) X(cuTexRefCreate) X(cuTexRefDestroy)           \
  X(cuTexRefSetArray) X(cuTexRefSetMipmappedArray) X(cuSurfRefSetArray) X(cuModuleUnload) X(cuCtxEnablePeerAccess) X(cuCtxDisablePeerAccess)
#if CUDA_VERSION >= 12000
#define GPUPOOL_GUARDED_CALLS_12_0(X) X(cuTensorMapEncodeTiled) X(cuTensorMapEncodeIm2col) X(cuLibraryUnload)
#else
#define GPUPOOL_GUARDED_CALLS_12_0(X)
#endif
#if CUDA_VERSION >= 12010
#define GPUPOOL_GUARDED_CALLS_12_1(X)                                                                              \
  X(cuMulticastCreate) X(cuMulticastAddDevice) X(cuMulticastBindMem) X(cuMulticastBindAddr) X(cuMulticastUnbind)   \
  X(cuMulticastGetGranularity)
#else
#define GPUPOOL_GUARDED_CALLS_12_1(X)
#endif
#if CUDA_VERSION >= 12080
#define GPUPOOL_GUARDED_CALLS_12_8(X) X(cuTensorMapEncodeIm2colWide) X(cuMemBatchDecompressAsync)
#else
#define GPUPOOL_GUARDED_CALLS_12_8(X)
#endif
// clang-format on

namespace gpupool::worker {
class DeviceMemory;
}

namespace gpupool::worker::guards {

// Checks that all operations are known and access the session's own memory only.
CUresult check_operations(const DeviceMemory& memory, std::span<const CUstreamBatchMemOpParams> operations);

// Calls `unload` now, or postpones it until the driver has all work that was launched before
// (postponed_unloads.h).
CUresult unload_after_kept_commands(CUcontext context, uint64_t handle, PostponedUnloads::Unload unload);

// Checks that the copy stays within the session's memory and arrays, and replaces the client's handles of
// arrays by the driver's. Rejects host memory.
CUresult check_copy(CUDA_MEMCPY3D& copy);

// The driver's functions behind the wrappers; null where the device library lacks them.
struct Calls {
#define GPUPOOL_MEMBER(name) DeviceCall<decltype(&::name)> name{#name};
  GPUPOOL_GUARDED_CALLS(GPUPOOL_MEMBER)
  GPUPOOL_GUARDED_CALLS_12_0(GPUPOOL_MEMBER)
  GPUPOOL_GUARDED_CALLS_12_1(GPUPOOL_MEMBER)
  GPUPOOL_GUARDED_CALLS_12_8(GPUPOOL_MEMBER)
#undef GPUPOOL_MEMBER
  void load(const SymbolLookup& symbol);
  // Returns the wrapper for `name`, or null if the row is not guarded.
  void* wrapper(std::string_view name) const;
};

}  // namespace gpupool::worker::guards
