// Settings of contexts, functions, streams, pools and textures that are read back, and device queries.
#include <cudaProfiler.h>

#include <cstring>

#include "tests/parity/show.h"

namespace parity {
namespace {

void of_contexts() {
  CUcontext current = nullptr, attached = nullptr;
  CUsharedconfig banks{};
  cuCtxGetCurrent(&current);
  REQUIRE(CUDA_SUCCESS, cuCtxAttach(&attached, 0));
  EXPECT(attached == current);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(&attached, 1));  // flags must be 0
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
  REQUIRE(CUDA_SUCCESS, cuDeviceGetByPCIBusId(&found, bus));
  EXPECT(found == 0);
  CUmemoryPool pool = nullptr, current = nullptr;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  cuMemPoolCreate(&pool, &properties);
  REQUIRE(CUDA_SUCCESS, cuDeviceSetMemPool(0, pool));
  REQUIRE(CUDA_SUCCESS, cuDeviceGetMemPool(&current, 0));
  EXPECT(current == pool);
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemAccess_flags flags{};
  SHOW(cuMemPoolSetAccess(pool, &access, 1));
  SHOW(cuMemPoolSetAccess(wild<CUmemoryPool>(), &access, 1));
  REQUIRE(CUDA_SUCCESS, cuMemPoolGetAccess(&flags, pool, &access.location));
  EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  SHOW(cuMemPoolGetAccess(nullptr, pool, &access.location));
  CUmemoryPool standard = nullptr;
  REQUIRE(CUDA_SUCCESS, cuMemPoolDestroy(pool));
  REQUIRE(CUDA_SUCCESS, cuDeviceGetMemPool(&current, 0));
  REQUIRE(CUDA_SUCCESS, cuDeviceGetDefaultMemPool(&standard, 0));
  EXPECT(current == standard);  // the default pool replaces a destroyed current pool
}

size_t shared_of_block(int threads) {
  return static_cast<size_t>(threads) * 16;
}

void of_functions() {
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  int blocks = -1, grid = -1, threads = -1;
  cuModuleLoadData(&module, kernels_ptx);
  cuModuleGetFunction(&fill, module, "fill");
  SHOW(cuFuncSetSharedMemConfig(fill, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
  SHOW(cuFuncSetSharedMemConfig(nullptr, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
  SHOW_VALUE(
      cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, fill, 256, 1024, CU_OCCUPANCY_DEFAULT),
      "%d", blocks);
  SHOW_VALUE(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, fill, 256, 1024,
                                                                  CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE),
             "%d", blocks);
  SHOW_VALUE(cuOccupancyMaxPotentialBlockSize(&grid, &threads, fill, nullptr, 0, 0), "%d %d", grid, threads);
  SHOW_VALUE(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &threads, fill, shared_of_block, 0, 0, 0),
             "%d %d", grid, threads);
  SHOW_VALUE(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &threads, fill, nullptr, 0, 100, 0), "%d %d",
             grid, threads);
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
  EXPECT(id != other_id);
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  REQUIRE(CUDA_SUCCESS, cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  REQUIRE(CUDA_SUCCESS, cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &read));
  EXPECT(read.syncPolicy == CU_SYNC_POLICY_YIELD);
  SHOW(cuStreamAddCallback(
      stream,
      [](CUstream, CUresult result, void* data) {
        *static_cast<int*>(data) = result == CUDA_SUCCESS ? 1 : -1;
      },
      &called, 0));
  SHOW(cuStreamSynchronize(stream));
  EXPECT(called == 1);
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
  REQUIRE(CUDA_SUCCESS, cuTexRefGetAddress(&told, picture));
  EXPECT(told == memory);
  SHOW(cuTexRefSetAddress(&offset, picture, kWildAddress, kPitch));
  SHOW(cuTexRefSetAddress2D(picture, &flat, memory, kPitch));
  SHOW_VALUE(cuTexRefGetAddress(&told, picture), "%d", told == memory);
  SHOW(cuTexRefSetAddress2D(picture, &flat, memory, 16));
  SHOW(cuArray3DCreate(&array, &shape));
  SHOW_VALUE(cuArray3DGetDescriptor(&read, array), "%zu %zu %zu %x %u %x", read.Width, read.Height,
             read.Depth, read.Format, read.NumChannels, read.Flags);
  SHOW(cuMipmappedArrayCreate(&levels, &shape, 3));
  SHOW(cuMipmappedArrayGetLevel(&bound, levels, 1));
  REQUIRE(CUDA_SUCCESS, cuArray3DGetDescriptor(&read, bound));
  EXPECT(read.Width == 8 && read.Height == 8);  // half of each side
  SHOW(cuTexRefSetMipmappedArray(picture, levels, CU_TRSA_OVERRIDE_FORMAT));
  REQUIRE(CUDA_SUCCESS, cuTexRefGetMipmappedArray(&bound_levels, picture));
  EXPECT(bound_levels == levels);
  SHOW(cuTexRefGetArray(&bound, picture));
  SHOW(cuModuleGetSurfRef(&board, module, "board"));
  SHOW(cuSurfRefGetArray(&bound, board));
  REQUIRE(CUDA_SUCCESS, cuSurfRefSetArray(board, array, 0));
  REQUIRE(CUDA_SUCCESS, cuSurfRefGetArray(&bound, board));
  EXPECT(bound == array);
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
  REQUIRE(CUDA_SUCCESS, cuTexRefGetFilterMode(&filter, picture));
  EXPECT(filter == CU_TR_FILTER_MODE_LINEAR);
  SHOW(cuTexRefSetFilterMode(picture, static_cast<CUfilter_mode>(9)));
  SHOW(cuTexRefSetFormat(picture, CU_AD_FORMAT_HALF, 2));
  REQUIRE(CUDA_SUCCESS, cuTexRefGetFormat(&format, &channels, picture));
  EXPECT(format == CU_AD_FORMAT_HALF && channels == 2);
  SHOW(cuTexRefSetMaxAnisotropy(picture, 8));
  REQUIRE(CUDA_SUCCESS, cuTexRefGetMaxAnisotropy(&anisotropy, picture));
  EXPECT(anisotropy == 8);
  SHOW(cuTexRefSetMipmapFilterMode(picture, CU_TR_FILTER_MODE_LINEAR));
  SHOW_VALUE(cuTexRefGetMipmapFilterMode(&filter, picture), "%d", filter);
  SHOW(cuTexRefSetMipmapLevelBias(picture, 1.5f));
  REQUIRE(CUDA_SUCCESS, cuTexRefGetMipmapLevelBias(&bias, picture));
  EXPECT(bias == 1.5f);
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

// Detaches from a context that the program created.
void detached_context() {
  CUcontext made = nullptr, attached = nullptr;
#if CUDA_VERSION >= 13000
  SHOW(cuCtxCreate(&made, nullptr, 0, 0));
#else
  SHOW(cuCtxCreate(&made, 0, 0));
#endif
  REQUIRE(CUDA_SUCCESS, cuCtxAttach(&attached, 0));
  EXPECT(attached == made);
  REQUIRE(CUDA_SUCCESS, cuCtxDetach(attached));
  SHOW(cuCtxDetach(nullptr));
}

}  // namespace parity
