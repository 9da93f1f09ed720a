// First versions of functions, and the launch functions of CUDA 2.
#define __CUDA_API_VERSION_INTERNAL  // declares every version under its own name
#include <cuda.h>
#include <cudaProfiler.h>

#include <cstdlib>

#include "tests/parity/show.h"

namespace parity {

void first_versions() {
  unsigned small = 0, other = 0;
  CUdeviceptr_v1 address = 0;
  void* host = nullptr;
  CUcontext context = nullptr, popped = nullptr;
  CUmodule module = nullptr;
  char word[8] = {};
  SHOW_VALUE(cuDeviceTotalMem(&small, 0), "%u", small);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuDeviceTotalMem(nullptr, 0));
  REQUIRE(CUDA_ERROR_INVALID_DEVICE, cuDeviceTotalMem(&small, 9));
  SHOW_VALUE(cuMemGetInfo(&small, &other), "%u", other);
  SHOW(cuMemGetInfo(nullptr, nullptr));
  REQUIRE(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&address, 4096));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(nullptr, 4096));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&address, 0));
  SHOW(cuMemAllocPitch(&address, &small, 100, 10, 4));
  SHOW(cuMemAllocPitch(&address, nullptr, 100, 10, 4));
  REQUIRE(CUDA_SUCCESS, cuMemFree(0));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemFree(0x1000));
  SHOW(cuMemGetAddressRange(&address, &small, 0x1000));
  REQUIRE(CUDA_SUCCESS, cuMemAllocHost(&host, 4096));
  REQUIRE(CUDA_SUCCESS, cuMemFreeHost(host));
  SHOW(cuMemHostGetDevicePointer(&address, word, 0));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(0x1000, word, 4));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(word, 0x1000, 4));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(0x1000, 0x2000, 4));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync(0x1000, word, 4, nullptr));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync(word, 0x1000, 4, nullptr));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoDAsync(0x1000, 0x2000, 4, nullptr));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(0x1000, 0, 4));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemsetD16(0x1000, 0, 4));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(0x1000, 0, 4));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D8(0x1000, 8, 0, 4, 4));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D16(0x1000, 8, 0, 4, 4));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D32(0x1000, 16, 0, 4, 4));
  char from[64], to[64] = {};
  for (int i = 0; i < 64; ++i) from[i] = static_cast<char>(i);
  CUDA_MEMCPY2D_v1 flat{};
  flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_HOST;
  flat.srcHost = from, flat.dstHost = to;
  flat.srcPitch = flat.dstPitch = 8;
  flat.WidthInBytes = 4, flat.Height = 3;
  REQUIRE(CUDA_SUCCESS, cuMemcpy2D(&flat));
  EXPECT(to[3] == 3 && to[9] == 9 && to[5] == 0);  // pitch 8, width 4
  REQUIRE(CUDA_SUCCESS, cuMemcpy2DUnaligned(&flat));
  REQUIRE(CUDA_SUCCESS, cuMemcpy2DAsync(&flat, nullptr));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(nullptr));
  CUDA_MEMCPY3D_v1 box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = from, box.dstHost = to;
  box.srcPitch = box.dstPitch = 8, box.srcHeight = box.dstHeight = 2;
  box.WidthInBytes = 4, box.Height = 2, box.Depth = 2;
  REQUIRE(CUDA_SUCCESS, cuMemcpy3D(&box));
  EXPECT(to[25] == 25 && to[29] == 0);
  REQUIRE(CUDA_SUCCESS, cuMemcpy3DAsync(&box, nullptr));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(nullptr));
  REQUIRE(CUDA_SUCCESS, cuModuleLoadData(&module, kernels_ptx));
  SHOW(cuModuleGetGlobal(&address, &small, module, "counter"));
  REQUIRE(CUDA_SUCCESS, cuModuleGetGlobal(nullptr, &small, module, "counter"));
  EXPECT(small == sizeof(unsigned));
  REQUIRE(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&address, &small, module, "absent"));
  SHOW(cuModuleUnload(module));
  SHOW(cuCtxCreate(&context, 0, 0));
  SHOW(cuCtxCreate(nullptr, 0, 0));
  REQUIRE(CUDA_SUCCESS, cuCtxPopCurrent(&popped));
  EXPECT(popped == context);
  REQUIRE(CUDA_SUCCESS, cuCtxPushCurrent(context));
  SHOW(cuCtxPushCurrent(wild<CUcontext>()));
  SHOW(cuCtxDestroy(context));
  SHOW(cuCtxDestroy(context));
  host = std::aligned_alloc(4096, 4096);
  SHOW(cuMemHostRegister(host, 4096, 0));
  SHOW(cuMemHostRegister(nullptr, 4096, 0));
  SHOW(cuMemHostUnregister(host));
  std::free(host);
  SHOW(cuProfilerInitialize(nullptr, nullptr, CU_OUT_CSV));
}

void old_launches() {
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr out = 0;
  unsigned seen[100] = {};
  cuModuleLoadData(&module, kernels_ptx);
  cuModuleGetFunction(&fill, module, "fill");
  cuStreamCreate(&stream, 0);
  cuMemAlloc_v2(&out, sizeof seen);
  cuMemsetD8_v2(out, 0, sizeof seen);
  SHOW(cuFuncSetBlockShape(fill, 128, 1, 1));
  SHOW(cuFuncSetBlockShape(fill, 0, 1, 1));
  SHOW(cuFuncSetBlockShape(nullptr, 1, 1, 1));
  SHOW(cuFuncSetSharedSize(fill, 0));
  SHOW(cuFuncSetSharedSize(wild<CUfunction>(), 0));
  LATE(cuLaunch(fill));
  SHOW(cuParamSetSize(fill, 16));
  SHOW(cuParamSetSize(fill, 1u << 30));
  SHOW(cuParamSetv(fill, 0, &out, sizeof out));
  SHOW(cuParamSetv(fill, 0, nullptr, 8));
  SHOW(cuParamSetv(fill, -4, &out, 8));
  SHOW(cuParamSeti(fill, 8, 77));
  SHOW(cuParamSeti(fill, 12, 99));
  SHOW(cuParamSeti(fill, 1 << 30, 100));
  SHOW(cuParamSeti(nullptr, 0, 1));
  SHOW(cuLaunch(fill));
  REQUIRE(CUDA_SUCCESS, cuLaunchGrid(fill, 1, 1));
  REQUIRE(CUDA_SUCCESS, cuMemcpyDtoH_v2(seen, out, sizeof seen));
  EXPECT(seen[0] == 77 && seen[98] == 77 + 98 && seen[99] == 0);  // the kernel adds the index
  SHOW(cuLaunchGrid(fill, 0, 1));
  SHOW(cuParamSeti(fill, 12, 100));
  SHOW(cuLaunchGridAsync(fill, 1, 1, stream));
  SHOW(cuLaunchGridAsync(fill, 1, 1, wild<CUstream>()));
  SHOW(cuParamSetf(fill, 8, 1.0f));
  REQUIRE(CUDA_SUCCESS, cuLaunchGridAsync(fill, 1, 1, stream));
  REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(stream));
  REQUIRE(CUDA_SUCCESS, cuMemcpyDtoH_v2(seen, out, sizeof seen));
  EXPECT(seen[0] == 0x3f800000 && seen[99] == 0x3f800000 + 99);  // bits of 1.0f
  unsigned value = 5, count = 100;
  void* parameters[] = {&out, &value, &count};
  CUDA_LAUNCH_PARAMS launch{fill, 1, 1, 1, 128, 1, 1, 0, stream, parameters};
  REQUIRE(CUDA_SUCCESS, cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(&launch, 0, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(&launch, 7, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(nullptr, 1, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(&launch, 1, 77));
  launch.hStream = nullptr;
  SHOW(cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
  SHOW(cuCtxSynchronize());
  REQUIRE(CUDA_SUCCESS, cuMemcpyDtoH_v2(seen, out, sizeof seen));
  EXPECT(seen[0] == 5 && seen[99] == 104);
  int clusters = -1;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 128;
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {1, 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  SHOW_VALUE(cuOccupancyMaxActiveClusters(&clusters, fill, &config), "%d", clusters);
  SHOW_VALUE(cuOccupancyMaxPotentialClusterSize(&clusters, fill, &config), "%d", clusters);
  SHOW(cuOccupancyMaxActiveClusters(nullptr, fill, &config));
  SHOW(cuOccupancyMaxActiveClusters(&clusters, nullptr, &config));
  SHOW(cuOccupancyMaxActiveClusters(&clusters, fill, nullptr));
  SHOW(cuOccupancyMaxPotentialClusterSize(&clusters, wild<CUfunction>(), &config));
  SHOW(cuOccupancyMaxPotentialClusterSize(&clusters, fill, nullptr));
  config.blockDimX = 5000;
  SHOW(cuOccupancyMaxActiveClusters(&clusters, fill, &config));
  cuMemFree_v2(out);
  cuModuleUnload(module);
}

}  // namespace parity
