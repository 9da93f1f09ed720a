#include "server/worker/device/device_api.h"

namespace gpupool::worker {

const char* DeviceApi::load(const SymbolLookup& symbol) {
#define GPUPOOL_LOAD(name) name = reinterpret_cast<decltype(&::name)>(symbol(#name));
  GPUPOOL_DEVICE_CALLS(GPUPOOL_LOAD)
  GPUPOOL_DEVICE_CALLS_12_0(GPUPOOL_LOAD)
  GPUPOOL_DEVICE_CALLS_12_1(GPUPOOL_LOAD)
  GPUPOOL_DEVICE_CALLS_12_3(GPUPOOL_LOAD)
  GPUPOOL_DEVICE_CALLS_12_4(GPUPOOL_LOAD)
#undef GPUPOOL_LOAD
  const auto zeroes = reinterpret_cast<int (*)()>(symbol("softgpu_zeroes_memory"));
  zeroes_memory = zeroes && zeroes() != 0;
  set_next_texture = reinterpret_cast<decltype(set_next_texture)>(symbol("softgpu_wish_texture"));
  wish_variable = reinterpret_cast<decltype(wish_variable)>(symbol("softgpu_wish_variable"));
  // The functions below are called without a check; all others are checked before each use.
#define GPUPOOL_NEED(name) \
  if (!name) return #name;
  GPUPOOL_NEED(cuCtxSetCurrent)
  GPUPOOL_NEED(cuCtxSynchronize)
  GPUPOOL_NEED(cuDevicePrimaryCtxRetain)
  GPUPOOL_NEED(cuDevicePrimaryCtxRelease_v2)
  GPUPOOL_NEED(cuStreamQuery)
  GPUPOOL_NEED(cuStreamSynchronize)
  GPUPOOL_NEED(cuStreamDestroy_v2)
  GPUPOOL_NEED(cuEventCreate)
  GPUPOOL_NEED(cuEventDestroy_v2)
  GPUPOOL_NEED(cuEventRecord)
  GPUPOOL_NEED(cuEventQuery)
  GPUPOOL_NEED(cuEventSynchronize)
  GPUPOOL_NEED(cuMemHostAlloc)
  GPUPOOL_NEED(cuMemFreeHost)
  GPUPOOL_NEED(cuMemcpyHtoDAsync_v2)
  GPUPOOL_NEED(cuMemcpyDtoHAsync_v2)
  GPUPOOL_NEED(cuMemcpy2DAsync_v2)
  GPUPOOL_NEED(cuModuleLoadDataEx)
  GPUPOOL_NEED(cuModuleUnload)
  GPUPOOL_NEED(cuModuleGetFunction)
  GPUPOOL_NEED(cuModuleGetGlobal_v2)
  GPUPOOL_NEED(cuFuncGetAttribute)
  GPUPOOL_NEED(cuLaunchKernel)
#undef GPUPOOL_NEED
  return nullptr;
}

}  // namespace gpupool::worker
