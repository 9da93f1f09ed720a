#include "tests/e2e/apps/destroyed_objects.h"

#include "tests/e2e/apps/scenario.h"

extern const char kernels_ptx[];  // kernels.cu

namespace app {

DestroyedObjects::DestroyedObjects() {
  CUdevice device = 0;
  CUgraphNode node = nullptr;
  const CUDA_ARRAY_DESCRIPTOR shape{16, 16, CU_AD_FORMAT_FLOAT, 1};
  const CUDA_ARRAY3D_DESCRIPTOR levels{16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  const CUmemPoolProps pool_properties{.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .handleTypes = CU_MEM_HANDLE_TYPE_NONE,
                                       .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}};
  const CUmemAllocationProp properties{.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE,
                                       .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}};
  (void)cuCtxGetDevice(&device);
  (void)cuMemAlloc(&address, 4096);
  (void)cuMemFree(address);
  (void)cuMemHostAlloc(&host, 4096, 0);
  (void)cuMemFreeHost(host);
  {
    const Kernels kernels;
    module = kernels.module;
    function = kernels.function("fill");
    (void)cuModuleUnload(module);
  }
  (void)cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  (void)cuStreamDestroy(stream);
  (void)cuEventCreate(&event, 0);
  (void)cuEventDestroy(event);
  (void)cuGraphCreate(&graph, 0);
  (void)cuGraphAddEmptyNode(&node, graph, nullptr, 0);
  (void)cuGraphInstantiate(&executable, graph, 0);
  (void)cuGraphExecDestroy(executable);
  (void)cuGraphDestroy(graph);
  this->node = node;
  (void)cuMemPoolCreate(&pool, &pool_properties);
  (void)cuMemPoolDestroy(pool);
  if (cuMemCreate(&allocation, 2 << 20, &properties, 0) == CUDA_SUCCESS) (void)cuMemRelease(allocation);
  (void)cuLinkCreate(0, nullptr, nullptr, &linker);
  (void)cuLinkDestroy(linker);
  (void)cuArrayCreate(&array, &shape);
  (void)cuArrayDestroy(array);
  (void)cuMipmappedArrayCreate(&mipmap, &levels, 2);
  (void)cuMipmappedArrayDestroy(mipmap);
  CUcontext current = nullptr;
  (void)cuCtxGetCurrent(&current);
  context = create_context(device);
  (void)cuCtxDestroy(context);
  (void)cuCtxSetCurrent(current);
#if CUDA_VERSION >= 12000
  (void)cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0);
  (void)cuLibraryGetKernel(&kernel, library, "fill");
  (void)cuLibraryUnload(library);
#endif
}

}  // namespace app
