// Settings of contexts, functions, streams, pools and textures that are read back, and questions about the device.
#include <cudaProfiler.h>

#include <cstring>

#include "tests/parity/show.h"

namespace parity {
namespace {

void of_contexts() {
  CUcontext current = nullptr, attached = nullptr;
  CUsharedconfig banks{};
  cuCtxGetCurrent(&current);
  SHOW_VALUE(cuCtxAttach(&attached, 0), "%d", attached == current);
  SHOW(cuCtxAttach(&attached, 1));
  SHOW(cuCtxAttach(nullptr, 0));
  SHOW(cuCtxGetSharedMemConfig(&banks));
  SHOW(cuCtxGetSharedMemConfig(nullptr));
  SHOW(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
  SHOW_VALUE(cuCtxGetSharedMemConfig(&banks), "%d", banks);
  SHOW(cuProfilerStart());
  SHOW(cuProfilerStop());
}

void of_devices() {
  size_t width = 0;
  char bus[32] = "";
  CUdevice found = -1;
  SHOW_VALUE(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 4, 0), "%zu", width);
  SHOW(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 3, 0));
  SHOW(cuDeviceGetTexture1DLinearMaxWidth(nullptr, CU_AD_FORMAT_FLOAT, 4, 0));
  SHOW_VALUE(cuDeviceGetPCIBusId(bus, sizeof bus, 0), "%zu", std::strlen(bus));
  SHOW_VALUE(cuDeviceGetByPCIBusId(&found, bus), "%d", found);
  CUmemoryPool pool = nullptr, current = nullptr;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  cuMemPoolCreate(&pool, &properties);
  SHOW(cuDeviceSetMemPool(0, pool));
  SHOW_VALUE(cuDeviceGetMemPool(&current, 0), "%d", current == pool);
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemAccess_flags flags{};
  SHOW(cuMemPoolSetAccess(pool, &access, 1));
  SHOW(cuMemPoolSetAccess(wild<CUmemoryPool>(), &access, 1));
  SHOW_VALUE(cuMemPoolGetAccess(&flags, pool, &access.location), "%d", flags);
  SHOW(cuMemPoolGetAccess(nullptr, pool, &access.location));
  SHOW(cuMemPoolDestroy(pool));
  SHOW_VALUE(cuDeviceGetMemPool(&current, 0), "%d", current != pool);
}

size_t shared_of_block(int threads) { return static_cast<size_t>(threads) * 16; }

void of_functions() {
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  int blocks = -1, grid = -1, threads = -1;
  cuModuleLoadData(&module, kernels_ptx);
  cuModuleGetFunction(&fill, module, "fill");
  SHOW(cuFuncSetSharedMemConfig(fill, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
  SHOW(cuFuncSetSharedMemConfig(nullptr, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
  SHOW_VALUE(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, fill, 256, 1024, CU_OCCUPANCY_DEFAULT), "%d", blocks);
  SHOW_VALUE(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, fill, 256, 1024, CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE), "%d", blocks);
  SHOW_VALUE(cuOccupancyMaxPotentialBlockSize(&grid, &threads, fill, nullptr, 0, 0), "%d %d", grid, threads);
  SHOW_VALUE(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &threads, fill, shared_of_block, 0, 0, 0), "%d %d", grid, threads);
  SHOW_VALUE(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &threads, fill, nullptr, 0, 100, 0), "%d %d", grid, threads);
  SHOW(cuOccupancyMaxPotentialBlockSizeWithFlags(nullptr, &threads, fill, nullptr, 0, 0, 0));
  cuModuleUnload(module);
}

void of_streams() {
  CUstream stream = nullptr, other = nullptr;
  unsigned long long id = 0, other_id = 0;
  CUstreamAttrValue value{}, read{};
  int called = 0;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
  SHOW(cuStreamGetId(stream, &id));
  SHOW(cuStreamGetId(other, &other_id));
  std::printf("their ids differ: %d\n", id != other_id);
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  SHOW(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  SHOW_VALUE(cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &read), "%d", read.syncPolicy);
  SHOW(cuStreamAddCallback(stream, [](CUstream, CUresult result, void* data) { *static_cast<int*>(data) = result == CUDA_SUCCESS ? 1 : -1; }, &called, 0));
  SHOW(cuStreamSynchronize(stream));
  std::printf("called: %d\n", called);
  cuStreamDestroy(stream);
  cuStreamDestroy(other);
}

const char kReferences[] = R"(
.version 8.0
.target sm_75
.address_size 64
.global .texref picture;
.global .surfref board;
.visible .entry nothing() { ret; }
)";

void bindings(CUmodule module, CUtexref picture) {
  constexpr size_t kPitch = 256;
  CUdeviceptr memory = 0, told = 0;
  CUarray array = nullptr, bound = nullptr;
  CUmipmappedArray levels = nullptr, bound_levels = nullptr;
  CUsurfref board = nullptr;
  size_t offset = 99;
  cuMemAlloc(&memory, 16 * kPitch);
  const CUDA_ARRAY_DESCRIPTOR flat{16, 16, CU_AD_FORMAT_FLOAT, 1};
  const CUDA_ARRAY3D_DESCRIPTOR shape{16, 16, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST};
  CUDA_ARRAY3D_DESCRIPTOR read{};
  SHOW(cuTexRefSetAddress(&offset, picture, memory, 4 * kPitch));
  std::printf("offset %zu\n", offset);
  SHOW_VALUE(cuTexRefGetAddress(&told, picture), "%d", told == memory);
  SHOW(cuTexRefSetAddress(&offset, picture, kWildAddress, kPitch));
  SHOW(cuTexRefSetAddress2D(picture, &flat, memory, kPitch));
  SHOW_VALUE(cuTexRefGetAddress(&told, picture), "%d", told == memory);
  SHOW(cuTexRefSetAddress2D(picture, &flat, memory, 16));
  SHOW(cuArray3DCreate(&array, &shape));
  SHOW_VALUE(cuArray3DGetDescriptor(&read, array), "%zu %zu %zu %x %u %x", read.Width, read.Height, read.Depth, read.Format, read.NumChannels, read.Flags);
  SHOW(cuMipmappedArrayCreate(&levels, &shape, 3));
  SHOW(cuMipmappedArrayGetLevel(&bound, levels, 1));
  SHOW_VALUE(cuArray3DGetDescriptor(&read, bound), "%zu %zu", read.Width, read.Height);
  SHOW(cuTexRefSetMipmappedArray(picture, levels, CU_TRSA_OVERRIDE_FORMAT));
  SHOW_VALUE(cuTexRefGetMipmappedArray(&bound_levels, picture), "%d", bound_levels == levels);
  SHOW(cuTexRefGetArray(&bound, picture));
  SHOW(cuModuleGetSurfRef(&board, module, "board"));
  SHOW(cuSurfRefGetArray(&bound, board));
  SHOW(cuSurfRefSetArray(board, array, 0));
  SHOW_VALUE(cuSurfRefGetArray(&bound, board), "%d", bound == array);
  SHOW(cuTexRefSetArray(picture, array, CU_TRSA_OVERRIDE_FORMAT));
  SHOW(cuTexRefGetMipmappedArray(&bound_levels, picture));
  SHOW(cuMipmappedArrayDestroy(levels));
  SHOW(cuArrayDestroy(array));
  cuMemFree(memory);
}

void of_textures() {
  CUmodule module = nullptr;
  CUtexref picture = nullptr;
  CUfunction nothing = nullptr;
  CUfilter_mode filter{};
  CUarray_format format{};
  int channels = 0, anisotropy = 0;
  float bias = 0;
  SHOW(cuModuleLoadData(&module, kReferences));
  cuModuleGetFunction(&nothing, module, "nothing");
  SHOW(cuModuleGetTexRef(&picture, module, "picture"));
  SHOW(cuTexRefSetFilterMode(picture, CU_TR_FILTER_MODE_LINEAR));
  SHOW_VALUE(cuTexRefGetFilterMode(&filter, picture), "%d", filter);
  SHOW(cuTexRefSetFilterMode(picture, static_cast<CUfilter_mode>(9)));
  SHOW(cuTexRefSetFormat(picture, CU_AD_FORMAT_HALF, 2));
  SHOW_VALUE(cuTexRefGetFormat(&format, &channels, picture), "%x %d", format, channels);
  SHOW(cuTexRefSetMaxAnisotropy(picture, 8));
  SHOW_VALUE(cuTexRefGetMaxAnisotropy(&anisotropy, picture), "%d", anisotropy);
  SHOW(cuTexRefSetMipmapFilterMode(picture, CU_TR_FILTER_MODE_LINEAR));
  SHOW_VALUE(cuTexRefGetMipmapFilterMode(&filter, picture), "%d", filter);
  SHOW(cuTexRefSetMipmapLevelBias(picture, 1.5f));
  SHOW_VALUE(cuTexRefGetMipmapLevelBias(&bias, picture), "%g", bias);
  SHOW(cuTexRefGetMipmapLevelBias(nullptr, picture));
  SHOW(cuParamSetTexRef(nothing, CU_PARAM_TR_DEFAULT, picture));
  SHOW(cuParamSetTexRef(nothing, 5, picture));
  SHOW(cuParamSetTexRef(nothing, CU_PARAM_TR_DEFAULT, nullptr));
  bindings(module, picture);
  cuModuleUnload(module);
}

}  // namespace

void settings() {
  of_contexts();
  of_devices();
  of_functions();
  of_streams();
  of_textures();
}

// As a program detaches from a context that it has made.
void detached_context() {
  CUcontext made = nullptr, attached = nullptr;
#if CUDA_VERSION >= 13000
  SHOW(cuCtxCreate(&made, nullptr, 0, 0));
#else
  SHOW(cuCtxCreate(&made, 0, 0));
#endif
  SHOW_VALUE(cuCtxAttach(&attached, 0), "%d", attached == made);
  SHOW(cuCtxDetach(attached));
  SHOW(cuCtxDetach(nullptr));
}

}  // namespace parity
