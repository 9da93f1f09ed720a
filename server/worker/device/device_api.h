// Table of the driver functions that the worker calls itself, in addition to the rows of the call table.
// Filled once at the start of a session and immutable afterwards; functions that the device library lacks are
// null. Any thread.
#pragma once
#include "protocol/driver/cuda_header.h"
#include "server/worker/session/session_start.h"
#include "server/worker/session/thread_activity.h"

// Names of the functions, for DeviceApi's members and their lookup.
// clang-format off
#define GPUPOOL_DEVICE_CALLS(X)                                                                                     \
  X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuCtxCreate_v2) X(cuCtxDestroy_v2) X(cuDevicePrimaryCtxRetain)           \
  X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxReset_v2) X(cuDevicePrimaryCtxSetFlags_v2)                    \
  X(cuThreadExchangeStreamCaptureMode) X(cuStreamIsCapturing) X(cuCtxGetLimit) X(cuCtxSetLimit) X(cuMemGetInfo_v2) X(cuMemsetD8Async)                                                                                   \
  X(cuStreamQuery) X(cuStreamGetFlags) X(cuStreamSynchronize) X(cuStreamCreate) X(cuStreamDestroy_v2) X(cuStreamWaitEvent)              \
  X(cuMemHostGetDevicePointer_v2)                                                                                   \
  X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize)                      \
  X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostRegister_v2) X(cuMemHostUnregister)                                \
  X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpy2DAsync_v2)          \
  X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemAddressReserve)                 \
  X(cuMemAddressFree) X(cuPointerGetAttribute) X(cuMemGetHandleForAddressRange) X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) \
  X(cuIpcGetEventHandle) X(cuIpcOpenEventHandle) X(cuFlushGPUDirectRDMAWrites) X(cuDeviceGetAttribute)          \
  X(cuModuleLoadDataEx) X(cuModuleUnload) X(cuModuleGetFunction) X(cuModuleGetGlobal_v2) X(cuFuncGetAttribute)      \
  X(cuLaunchKernel) X(cuLaunchKernelEx) X(cuLaunchCooperativeKernel)                                                \
  X(cuArray3DCreate_v2) X(cuArrayDestroy) X(cuArrayGetPlane) X(cuMipmappedArrayCreate) X(cuMipmappedArrayGetLevel) X(cuMipmappedArrayDestroy) \
  X(cuMemcpy3DAsync_v2) X(cuTexObjectCreate) X(cuTexObjectDestroy) X(cuSurfObjectCreate) X(cuSurfObjectDestroy) X(cuModuleGetTexRef) X(cuModuleGetSurfRef) \
  X(cuTexRefSetBorderColor)                                                                                          \
  X(cuGraphDestroy) X(cuGraphExecDestroy) X(cuMemPoolDestroy) X(cuLinkDestroy) X(cuLinkCreate_v2) X(cuLinkAddData_v2) X(cuLinkComplete) \
  X(cuGraphCreate) X(cuGraphAddDependencies) X(cuGraphAddMemcpyNode) X(cuGraphAddMemsetNode) X(cuGraphAddEmptyNode)     \
  X(cuGraphAddEventRecordNode) X(cuGraphAddEventWaitNode) X(cuGraphAddBatchMemOpNode) X(cuGraphKernelNodeSetAttribute) \
  X(cuGraphInstantiateWithFlags) X(cuGraphExecMemcpyNodeSetParams) X(cuGraphExecMemsetNodeSetParams)                \
  X(cuGraphExecEventRecordNodeSetEvent) X(cuGraphExecEventWaitNodeSetEvent)         \
  X(cuGraphExecBatchMemOpNodeSetParams) X(cuGraphNodeSetEnabled) X(cuGraphLaunch) X(cuGraphUpload)
#if CUDA_VERSION >= 12000
#define GPUPOOL_DEVICE_CALLS_12_0(X)                                                                                \
  X(cuLibraryLoadData) X(cuLibraryUnload) X(cuLibraryGetKernel) X(cuLibraryGetGlobal) X(cuLibraryGetManaged) X(cuKernelGetFunction)        \
  X(cuKernelGetAttribute) X(cuGraphAddKernelNode_v2) X(cuGraphExecKernelNodeSetParams_v2) X(cuGraphExecUpdate_v2)
#else
#define GPUPOOL_DEVICE_CALLS_12_0(X)
#endif
#if CUDA_VERSION >= 12010
#define GPUPOOL_DEVICE_CALLS_12_1(X) X(cuMulticastCreate) X(cuMulticastAddDevice) X(cuMulticastBindMem) X(cuMulticastUnbind)
#else
#define GPUPOOL_DEVICE_CALLS_12_1(X)
#endif
#if CUDA_VERSION >= 12030
#define GPUPOOL_DEVICE_CALLS_12_3(X) X(cuGraphConditionalHandleCreate) X(cuGraphAddNode_v2) X(cuGraphAddDependencies_v2)
#else
#define GPUPOOL_DEVICE_CALLS_12_3(X)
#endif
#if CUDA_VERSION >= 12040
#define GPUPOOL_DEVICE_CALLS_12_4(X)                                                                                \
  X(cuFuncGetParamInfo) X(cuKernelGetParamInfo) X(cuFuncGetName) X(cuKernelGetName) X(cuModuleGetFunctionCount)     \
  X(cuModuleEnumerateFunctions) X(cuLibraryGetKernelCount) X(cuLibraryEnumerateKernels)
#else
#define GPUPOOL_DEVICE_CALLS_12_4(X)
#endif
// clang-format on

namespace gpupool::worker {

struct DeviceApi {
#define GPUPOOL_MEMBER(name) DeviceCall<decltype(&::name)> name{#name};
  GPUPOOL_DEVICE_CALLS(GPUPOOL_MEMBER)
  GPUPOOL_DEVICE_CALLS_12_0(GPUPOOL_MEMBER)
  GPUPOOL_DEVICE_CALLS_12_1(GPUPOOL_MEMBER)
  GPUPOOL_DEVICE_CALLS_12_3(GPUPOOL_MEMBER)
  GPUPOOL_DEVICE_CALLS_12_4(GPUPOOL_MEMBER)
#undef GPUPOOL_MEMBER

  // True if the device zeroes new memory itself. Only softgpu reports this.
  bool zeroes_memory = false;
  // Requests a number for the calling thread's next texture or surface object. A softgpu extension; null on
  // other devices.
  void (*set_next_texture)(unsigned long long number) = nullptr;

  // Requests an address for a variable of the next module or library that has one of this name. A softgpu
  // extension; null on other devices.
  void (*wish_variable)(const char* name, unsigned long long address) = nullptr;

  // Looks up all functions. Returns null on success, or the name of a missing function without which no
  // session can work.
  const char* load(const SymbolLookup& symbol);
};

}  // namespace gpupool::worker
