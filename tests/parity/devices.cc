// Initialization, devices and contexts.
#include <cudaProfiler.h>

#include "tests/parity/show.h"

namespace parity {

void before_initialising() {
  int number = -1;
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  const char* text = nullptr;
  void* function = nullptr;
  SHOW(cuDeviceGetCount(&number));
  SHOW(cuDeviceGet(&number, 0));
  SHOW(cuCtxGetCurrent(&context));
  SHOW(cuCtxSynchronize());
  SHOW(cuMemAlloc(&address, 64));
  SHOW(cuMemFree(0));
  SHOW(cuStreamSynchronize(nullptr));
  SHOW(cuDevicePrimaryCtxRetain(&context, 0));
  REQUIRE(CUDA_ERROR_NOT_INITIALIZED, cuProfilerStart());
  REQUIRE(CUDA_ERROR_NOT_INITIALIZED, cuProfilerStop());
  SHOW_VALUE(cuDriverGetVersion(&number), "%d", number);
  SHOW(cuDriverGetVersion(nullptr));
  SHOW_VALUE(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text), "%s", text);
  SHOW_VALUE(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text), "%s", text);
  SHOW(cuGetErrorName(static_cast<CUresult>(12345), &text));
  SHOW(cuGetErrorString(static_cast<CUresult>(12345), &text));
  SHOW(cuGetErrorName(CUDA_SUCCESS, nullptr));
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  SHOW_VALUE(cuGetProcAddress("cuInit", &function, 13000, 0, &found), "%d %d", function != nullptr, found);
  SHOW_VALUE(cuGetProcAddress("cuNoSuchThing", &function, 13000, 0, &found), "%d %d", function != nullptr,
             found);
  SHOW_VALUE(cuGetProcAddress("cuGraphCreate", &function, 2000, 0, &found), "%d %d", function != nullptr,
             found);
  SHOW(cuGetProcAddress(nullptr, &function, 13000, 0, &found));
  SHOW(cuGetProcAddress("cuInit", nullptr, 13000, 0, &found));
  SHOW(cuGetProcAddress("cuInit", &function, 13000, 77, &found));
  const void* table = nullptr;
  CUuuid uuid{};
  SHOW(cuGetExportTable(&table, &uuid));
  SHOW(cuGetExportTable(nullptr, &uuid));
  SHOW(cuGetExportTable(&table, nullptr));
#if CUDA_VERSION >= 12080
  CUprocessState state{};
  SHOW(cuCheckpointProcessGetState(1, &state));
  SHOW(cuCheckpointProcessGetState(1, nullptr));
  SHOW(cuCheckpointProcessGetRestoreThreadId(1, nullptr));
  SHOW(cuCheckpointProcessLock(1, nullptr));
  SHOW(cuCheckpointProcessCheckpoint(1, nullptr));
  SHOW(cuCheckpointProcessRestore(1, nullptr));
  SHOW(cuCheckpointProcessUnlock(1, nullptr));
#endif
  SHOW(cuInit(1));
  SHOW(cuInit(0));
  SHOW(cuInit(0));
  SHOW(cuInit(1));
}

void devices() {
  int number = -1, other = -1;
  size_t bytes = 0;
  char text[64] = "";  // larger than the lengths passed: NVIDIA's driver takes a negative one for a large one
  CUuuid uuid{};
  CUdevice device = -1;
  CUdevprop properties{};
  CUmemoryPool pool = nullptr;
  cuInit(0);
  SHOW_VALUE(cuDeviceGetCount(&number), "%d", number);
  SHOW(cuDeviceGetCount(nullptr));
  SHOW_VALUE(cuDeviceGet(&device, 0), "%d", device);
  SHOW(cuDeviceGet(&device, 1));
  SHOW(cuDeviceGet(&device, -1));
  SHOW(cuDeviceGet(nullptr, 0));
  SHOW_VALUE(cuDeviceGetName(text, 8, 0), "%s", text);
  SHOW_VALUE(cuDeviceGetName(text, 1, 0), "'%s'", text);
  SHOW(cuDeviceGetName(text, 0, 0));
  SHOW(cuDeviceGetName(text, -5, 0));
  SHOW(cuDeviceGetName(nullptr, 8, 0));
  SHOW(cuDeviceGetName(text, 8, 9));
  SHOW_VALUE(cuDeviceTotalMem(&bytes, 0), "%zu", bytes);
  SHOW(cuDeviceTotalMem(nullptr, 0));
  SHOW(cuDeviceTotalMem(&bytes, 9));
  SHOW(cuDeviceGetUuid(nullptr, 0));
  SHOW(cuDeviceGetUuid(&uuid, 9));
  SHOW(cuDeviceGetLuid(nullptr, nullptr, 0));
  SHOW(cuDeviceGetPCIBusId(nullptr, 8, 0));
  SHOW(cuDeviceGetPCIBusId(text, 0, 0));
  SHOW(cuDeviceGetPCIBusId(text, 8, 9));
  SHOW(cuDeviceGetByPCIBusId(&device, nullptr));
  SHOW(cuDeviceGetByPCIBusId(nullptr, "0000:00:00.0"));
  SHOW(cuDeviceGetByPCIBusId(&device, "no bus"));
  SHOW(cuDeviceGetByPCIBusId(&device, ""));
  SHOW_VALUE(cuDeviceComputeCapability(&number, &other, 0), "%d.%d", number, other);
  SHOW(cuDeviceComputeCapability(nullptr, nullptr, 0));
  SHOW_VALUE(cuDeviceGetProperties(&properties, 0), "%d %d %d %d %d %d", properties.maxThreadsPerBlock,
             properties.sharedMemPerBlock, properties.totalConstantMemory, properties.SIMDWidth,
             properties.memPitch, properties.regsPerBlock);
  SHOW(cuDeviceGetProperties(nullptr, 0));
  SHOW(cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  SHOW(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 9));
  for (int attribute = -1; attribute < 200; ++attribute) {
    number = -1;
    const CUresult result = cuDeviceGetAttribute(&number, static_cast<CUdevice_attribute>(attribute), 0);
    std::printf("attribute %d -> %s %d\n", attribute, name_of(result), number);
  }
  SHOW_VALUE(cuDeviceCanAccessPeer(&number, 0, 0), "%d", number);
  SHOW(cuDeviceCanAccessPeer(&number, 0, 9));
  SHOW(cuDeviceCanAccessPeer(nullptr, 0, 0));
  SHOW(cuDeviceGetP2PAttribute(&number, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
  SHOW(cuDeviceGetP2PAttribute(&number, static_cast<CUdevice_P2PAttribute>(99), 0, 0));
  SHOW(cuDeviceGetP2PAttribute(&number, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 9));
  SHOW_VALUE(cuDeviceGetExecAffinitySupport(&number, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0), "%d", number);
  SHOW(cuDeviceGetExecAffinitySupport(nullptr, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
  SHOW(cuDeviceGetExecAffinitySupport(&number, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 9));
  SHOW(cuDeviceGetDefaultMemPool(&pool, 9));
  SHOW(cuDeviceGetDefaultMemPool(nullptr, 0));
  SHOW(cuDeviceGetMemPool(&pool, 9));
  SHOW(cuDeviceGetMemPool(nullptr, 0));
}

void contexts() {
  unsigned flags = 77;
  int active = -1, number = -1, other = -1;
  CUcontext context = nullptr, second = nullptr, current = nullptr;
  CUdevice device = -1;
  CUdeviceptr address = 0;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUmodule module = nullptr;
  unsigned long long id = 0;
  size_t bytes = 0;
  cuInit(0);
  SHOW(cuDevicePrimaryCtxRelease(0));
  SHOW_VALUE(cuDevicePrimaryCtxGetState(0, &flags, &active), "%u %d", flags, active);
  SHOW(cuDevicePrimaryCtxGetState(9, &flags, &active));
  SHOW(cuDevicePrimaryCtxGetState(0, nullptr, nullptr));
  SHOW(cuDevicePrimaryCtxSetFlags(0, 0xffff));
  SHOW(cuDevicePrimaryCtxSetFlags(0, 3));
  SHOW(cuDevicePrimaryCtxSetFlags(9, 0));
  SHOW(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_BLOCKING_SYNC));
  SHOW_VALUE(cuDevicePrimaryCtxGetState(0, &flags, &active), "%u %d", flags, active);
  SHOW(cuDevicePrimaryCtxRetain(nullptr, 0));
  SHOW(cuDevicePrimaryCtxRetain(&context, 9));
  SHOW(cuDevicePrimaryCtxReset(9));
  SHOW(cuDevicePrimaryCtxReset(0));
  // No context is current.
  REQUIRE(CUDA_ERROR_INVALID_CONTEXT, cuProfilerStart());
  SHOW_VALUE(cuCtxGetCurrent(&current), "%d", current != nullptr);
  SHOW(cuCtxGetCurrent(nullptr));
  SHOW(cuCtxGetDevice(&device));
  SHOW(cuCtxSynchronize());
  SHOW(cuCtxGetFlags(&flags));
  SHOW(cuCtxGetId(nullptr, &id));
  SHOW(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
  SHOW(cuCtxGetStreamPriorityRange(&number, &other));
  SHOW(cuMemAlloc(&address, 64));
  SHOW(cuMemGetInfo(&bytes, &bytes));
  SHOW(cuStreamCreate(&stream, 0));
  SHOW(cuStreamSynchronize(nullptr));
  SHOW(cuStreamQuery(nullptr));
  SHOW(cuEventCreate(&event, 0));
  SHOW(cuModuleLoadData(&module, kernels_ptx));
  SHOW(cuMemcpyHtoD(kWildAddress, &number, 4));
  SHOW(cuMemsetD8(kWildAddress, 0, 4));
  void* host = nullptr;
  SHOW(cuMemAllocHost(&host, 64));
  SHOW(cuCtxPopCurrent(&current));
  SHOW(cuCtxPushCurrent(nullptr));
  SHOW(cuCtxPushCurrent(wild<CUcontext>()));
  SHOW(cuCtxSetCurrent(wild<CUcontext>()));
  SHOW(cuCtxSetCurrent(nullptr));
  SHOW(cuCtxDestroy(nullptr));
  SHOW(cuCtxDestroy(wild<CUcontext>()));
  SHOW(cuCtxGetApiVersion(wild<CUcontext>(), &flags));
#if CUDA_VERSION >= 13000
#define CREATE(made, flags, device) cuCtxCreate(made, nullptr, flags, device)
#else
#define CREATE(made, flags, device) cuCtxCreate(made, flags, device)
#endif
  SHOW(CREATE(nullptr, 0, 0));
  SHOW(CREATE(&context, 0xffff, 0));
  SHOW(CREATE(&context, 3, 0));
  SHOW(CREATE(&context, 0, 9));
  SHOW(CREATE(&context, CU_CTX_SCHED_YIELD, 0));
  SHOW_VALUE(cuCtxGetCurrent(&current), "%d", current == context);
  SHOW_VALUE(cuCtxGetDevice(&device), "%d", device);
  SHOW(cuCtxGetDevice(nullptr));
  SHOW_VALUE(cuCtxGetFlags(&flags), "%u", flags);
  SHOW(cuCtxGetFlags(nullptr));
  SHOW(cuCtxSetFlags(CU_CTX_SCHED_SPIN));
  SHOW(cuCtxSetFlags(0xffff));
  SHOW_VALUE(cuCtxGetFlags(&flags), "%u", flags);
  SHOW_VALUE(cuCtxGetApiVersion(context, &flags), "%u", flags);
  SHOW_VALUE(cuCtxGetApiVersion(nullptr, &flags), "%u", flags);
  SHOW(cuCtxGetApiVersion(context, nullptr));
  SHOW(cuCtxGetId(context, nullptr));
  SHOW_VALUE(cuCtxGetStreamPriorityRange(&number, &other), "%d %d", number, other);
  SHOW(cuCtxGetStreamPriorityRange(nullptr, nullptr));
  for (int limit = -1; limit < 12; ++limit) {
    bytes = 0;
    const CUresult result = cuCtxGetLimit(&bytes, static_cast<CUlimit>(limit));
    std::printf("limit %d -> %s %zu, set %s\n", limit, name_of(result), bytes,
                name_of(cuCtxSetLimit(static_cast<CUlimit>(limit), bytes)));
  }
  SHOW(cuCtxGetLimit(nullptr, CU_LIMIT_STACK_SIZE));
  SHOW(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
  SHOW_VALUE(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE), "%zu", bytes);
  SHOW(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, size_t{1} << 40));
  CUfunc_cache cache = CU_FUNC_CACHE_PREFER_NONE;
  SHOW_VALUE(cuCtxGetCacheConfig(&cache), "%d", cache);
  SHOW(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
  SHOW_VALUE(cuCtxGetCacheConfig(&cache), "%d", cache);
  SHOW(cuCtxGetCacheConfig(nullptr));
  LATE(cuCtxSetCacheConfig(static_cast<CUfunc_cache>(9)));
  SHOW(cuCtxResetPersistingL2Cache());
  SHOW(cuCtxEnablePeerAccess(nullptr, 0));
  SHOW(cuCtxEnablePeerAccess(context, 0));
  SHOW(cuCtxEnablePeerAccess(wild<CUcontext>(), 0));
  SHOW(cuCtxDisablePeerAccess(nullptr));
  SHOW(cuCtxDisablePeerAccess(context));
  SHOW(CREATE(&second, 0, 0));
  SHOW(cuCtxPushCurrent(context));
  SHOW_VALUE(cuCtxPopCurrent(&current), "%d", current == context);
  SHOW_VALUE(cuCtxPopCurrent(nullptr), "%d", 0);
  SHOW_VALUE(cuCtxGetCurrent(&current), "%d", current == context);
  SHOW(cuCtxSetCurrent(second));
  SHOW(cuCtxDestroy(second));
  SHOW_VALUE(cuCtxGetCurrent(&current), "%d", current == nullptr);
  SHOW(cuCtxDestroy(second));
  SHOW_UNLESS_GUARDED(cuCtxSetCurrent(second));  // NVIDIA's driver crashes in the next call
  SHOW(cuCtxSetCurrent(context));
  SHOW(cuCtxDestroy(context));
  SHOW(cuCtxSynchronize());
  // The primary context.
  SHOW(cuDevicePrimaryCtxRetain(&context, 0));
  SHOW(cuCtxDestroy(context));
  SHOW(cuCtxSetCurrent(context));
  SHOW(cuMemAlloc(&address, 64));
  SHOW_VALUE(cuDevicePrimaryCtxGetState(0, &flags, &active), "%u %d", flags, active);
  SHOW(cuDevicePrimaryCtxReset(0));
  SHOW_VALUE(cuDevicePrimaryCtxGetState(0, &flags, &active), "%u %d", flags, active);
  SHOW(cuMemFree(address));
  SHOW(cuCtxSynchronize());
  SHOW(cuStreamCreate(&stream, 0));
  SHOW_VALUE(cuCtxGetDevice(&device), "%d", device);
  SHOW(cuDevicePrimaryCtxRetain(&second, 0));
  SHOW(cuMemAlloc(&address, 64));
  SHOW(cuMemFree(address));
  SHOW(cuDevicePrimaryCtxRelease(0));
  SHOW(cuCtxSynchronize());
  SHOW(cuDevicePrimaryCtxRelease(0));
  SHOW(cuCtxSynchronize());
  SHOW(cuDevicePrimaryCtxRelease(0));
}

// The use count of cuCtxAttach and cuCtxDetach: the last detach destroys the context. Detach requires that
// the context is current.
void attached_contexts() {
  CUcontext context = nullptr, attached = nullptr, other = nullptr, current = nullptr, primary = nullptr;
  cuInit(0);
  REQUIRE(CUDA_ERROR_INVALID_CONTEXT, cuCtxAttach(&attached, 0));
  REQUIRE(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(nullptr));
  cuDevicePrimaryCtxRetain(&primary, 0);
  CREATE(&other, 0, 0);
  CREATE(&context, 0, 0);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(nullptr, 0));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(&attached, 1));
  REQUIRE(CUDA_SUCCESS, cuCtxAttach(&attached, 0));
  std::printf("attached to the current context: %d\n", attached == context);
  REQUIRE(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(other));
  REQUIRE(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(wild<CUcontext>()));
  REQUIRE(CUDA_SUCCESS, cuCtxDetach(context));
  REQUIRE(CUDA_SUCCESS, cuCtxSynchronize());
  REQUIRE(CUDA_SUCCESS, cuCtxDetach(context));
  REQUIRE(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(context));
  SHOW_VALUE(cuCtxGetCurrent(&current), "%d", current == other);
  SHOW_UNLESS_GUARDED(cuCtxSetCurrent(context));
  // A detach does not destroy a primary context; only its release does.
  cuCtxSetCurrent(primary);
  REQUIRE(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(primary));
  REQUIRE(CUDA_SUCCESS, cuCtxAttach(&attached, 0));
  REQUIRE(CUDA_SUCCESS, cuCtxDetach(primary));
  REQUIRE(CUDA_SUCCESS, cuCtxSynchronize());
}

}  // namespace parity
