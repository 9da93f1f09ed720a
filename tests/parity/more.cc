// Functions under their first names, the launch calls of CUDA 2, batches of copies, pools by place, tensor maps, clusters, logs, core dumps,
// user objects.
#define __CUDA_API_VERSION_INTERNAL  // every version under its own name
#include <cuda.h>
#include <cudaProfiler.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>

#include "tests/parity/show.h"

namespace parity {
namespace {

void first_versions() {
  unsigned small = 0, other = 0;
  CUdeviceptr_v1 address = 0;
  void* host = nullptr;
  CUcontext context = nullptr, popped = nullptr;
  CUmodule module = nullptr;
  char word[8] = {};
  SHOW_VALUE(cuDeviceTotalMem(&small, 0), "%u", small);
  SHOW(cuDeviceTotalMem(nullptr, 0));
  SHOW(cuDeviceTotalMem(&small, 9));
  SHOW_VALUE(cuMemGetInfo(&small, &other), "%u", other);
  SHOW(cuMemGetInfo(nullptr, nullptr));
  SHOW(cuMemAlloc(&address, 4096));
  SHOW(cuMemAlloc(nullptr, 4096));
  SHOW(cuMemAlloc(&address, 0));
  SHOW(cuMemAllocPitch(&address, &small, 100, 10, 4));
  SHOW(cuMemAllocPitch(&address, nullptr, 100, 10, 4));
  SHOW(cuMemFree(0));
  SHOW(cuMemFree(0x1000));
  SHOW(cuMemGetAddressRange(&address, &small, 0x1000));
  SHOW(cuMemAllocHost(&host, 4096));
  SHOW(cuMemFreeHost(host));
  SHOW(cuMemHostGetDevicePointer(&address, word, 0));
  SHOW(cuMemcpyHtoD(0x1000, word, 4));
  SHOW(cuMemcpyDtoH(word, 0x1000, 4));
  SHOW(cuMemcpyDtoD(0x1000, 0x2000, 4));
  SHOW(cuMemcpyHtoDAsync(0x1000, word, 4, nullptr));
  SHOW(cuMemcpyDtoHAsync(word, 0x1000, 4, nullptr));
  SHOW(cuMemcpyDtoDAsync(0x1000, 0x2000, 4, nullptr));
  SHOW(cuMemsetD8(0x1000, 0, 4));
  SHOW(cuMemsetD16(0x1000, 0, 4));
  SHOW(cuMemsetD32(0x1000, 0, 4));
  SHOW(cuMemsetD2D8(0x1000, 8, 0, 4, 4));
  SHOW(cuMemsetD2D16(0x1000, 8, 0, 4, 4));
  SHOW(cuMemsetD2D32(0x1000, 16, 0, 4, 4));
  char from[64], to[64] = {};
  for (int i = 0; i < 64; ++i) from[i] = static_cast<char>(i);
  CUDA_MEMCPY2D_v1 flat{};
  flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_HOST;
  flat.srcHost = from, flat.dstHost = to;
  flat.srcPitch = flat.dstPitch = 8;
  flat.WidthInBytes = 4, flat.Height = 3;
  SHOW_VALUE(cuMemcpy2D(&flat), "%d %d", to[9], to[5]);
  SHOW(cuMemcpy2DUnaligned(&flat));
  SHOW(cuMemcpy2DAsync(&flat, nullptr));
  SHOW(cuMemcpy2D(nullptr));
  CUDA_MEMCPY3D_v1 box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = from, box.dstHost = to;
  box.srcPitch = box.dstPitch = 8, box.srcHeight = box.dstHeight = 2;
  box.WidthInBytes = 4, box.Height = 2, box.Depth = 2;
  SHOW_VALUE(cuMemcpy3D(&box), "%d", to[25]);
  SHOW(cuMemcpy3DAsync(&box, nullptr));
  SHOW(cuMemcpy3D(nullptr));
  SHOW(cuModuleLoadData(&module, kernels_ptx));
  SHOW(cuModuleGetGlobal(&address, &small, module, "counter"));
  SHOW_VALUE(cuModuleGetGlobal(nullptr, &small, module, "counter"), "%u", small);
  SHOW(cuModuleGetGlobal(&address, &small, module, "absent"));
  SHOW(cuModuleUnload(module));
  SHOW(cuCtxCreate(&context, 0, 0));
  SHOW(cuCtxCreate(nullptr, 0, 0));
  SHOW_VALUE(cuCtxPopCurrent(&popped), "%d", popped == context);
  SHOW(cuCtxPushCurrent(context));
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
  SHOW(cuFuncSetBlockShape(fill, 128, 1, 1));
  SHOW(cuFuncSetBlockShape(fill, 0, 1, 1));
  SHOW(cuFuncSetBlockShape(nullptr, 1, 1, 1));
  SHOW(cuFuncSetSharedSize(fill, 0));
  SHOW(cuFuncSetSharedSize(wild<CUfunction>(), 0));
  SHOW(cuLaunch(fill));
  SHOW(cuParamSetSize(fill, 16));
  SHOW(cuParamSetSize(fill, 1u << 30));
  SHOW(cuParamSetv(fill, 0, &out, sizeof out));
  SHOW(cuParamSetv(fill, 0, nullptr, 8));
  SHOW(cuParamSetv(fill, -4, &out, 8));
  SHOW(cuParamSeti(fill, 8, 77));
  SHOW(cuParamSeti(fill, 12, 100));
  SHOW(cuParamSeti(fill, 1 << 30, 100));
  SHOW(cuParamSeti(nullptr, 0, 1));
  SHOW(cuLaunch(fill));
  SHOW(cuLaunchGrid(fill, 1, 1));
  SHOW(cuLaunchGrid(fill, 0, 1));
  SHOW(cuLaunchGridAsync(fill, 1, 1, stream));
  SHOW(cuLaunchGridAsync(fill, 1, 1, wild<CUstream>()));
  SHOW(cuParamSetf(fill, 8, 1.0f));
  SHOW(cuLaunchGridAsync(fill, 1, 1, stream));
  SHOW(cuStreamSynchronize(stream));
  SHOW_VALUE(cuMemcpyDtoH_v2(seen, out, sizeof seen), "%08x %08x", seen[0], seen[99]);
  unsigned value = 5, count = 100;
  void* parameters[] = {&out, &value, &count};
  CUDA_LAUNCH_PARAMS launch{fill, 1, 1, 1, 128, 1, 1, 0, stream, parameters};
  SHOW(cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(&launch, 0, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(&launch, 7, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(nullptr, 1, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(&launch, 1, 77));
  launch.hStream = nullptr;
  SHOW(cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
  SHOW(cuCtxSynchronize());
  SHOW_VALUE(cuMemcpyDtoH_v2(seen, out, sizeof seen), "%u %u", seen[0], seen[99]);
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

void batches() {
  CUstream stream = nullptr;
  CUdeviceptr device = 0;
  void* pinned = nullptr;
  unsigned char from[256], to[256] = {};
  for (int i = 0; i < 256; ++i) from[i] = static_cast<unsigned char>(i);
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuMemAlloc_v2(&device, 4096);
  cuMemHostAlloc(&pinned, 256, 0);
  std::memcpy(pinned, from, 256);
  CUdeviceptr targets[] = {device, device + 256}, sources[] = {reinterpret_cast<CUdeviceptr>(from), reinterpret_cast<CUdeviceptr>(pinned)};
  size_t sizes[] = {256, 100}, indices[] = {0, 1}, failed = 99;
  CUmemcpyAttributes attributes[2] = {};
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  const auto batch = [&](size_t count, size_t kinds) { return cuMemcpyBatchAsync_v2(targets, sources, sizes, count, attributes, indices, kinds, stream); };
  SHOW(batch(2, 2));
  std::memset(pinned, 0, 256);  // has been read
  SHOW(cuStreamSynchronize(stream));
  SHOW_VALUE(cuMemcpyDtoH_v2(to, device + 100, 256), "%d %d", to[0], to[255]);
  SHOW(batch(2, 1));
  SHOW(batch(0, 1));
  SHOW(batch(1, 2));
  SHOW(batch(2, 0));
  indices[0] = 1;
  SHOW(batch(2, 2));
  indices[0] = 0;
  indices[1] = 0;
  SHOW(batch(2, 2));
  indices[1] = 1;
  attributes[1].srcAccessOrder = static_cast<CUmemcpySrcAccessOrder>(9);
  SHOW(batch(2, 2));
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
  SHOW(cuMemcpyBatchAsync_v2(nullptr, sources, sizes, 2, attributes, indices, 1, stream));
  SHOW(cuMemcpyBatchAsync_v2(targets, sources, sizes, 2, nullptr, indices, 1, stream));
  SHOW(cuMemcpyBatchAsync_v2(targets, sources, sizes, 2, attributes, indices, 1, nullptr));
  SHOW(cuMemcpyBatchAsync_v2_ptsz(targets, sources, sizes, 2, attributes, indices, 1, nullptr));
  SHOW(cuMemcpyBatchAsync_v2(targets, sources, sizes, 2, attributes, indices, 1, wild<CUstream>()));
  sizes[1] = 0;
  SHOW(cuMemcpyBatchAsync(targets, sources, sizes, 2, attributes, indices, 1, &failed, stream));
  std::printf("failed %zu\n", failed);
  sizes[1] = 100;
  SHOW(cuMemcpyBatchAsync(targets, sources, sizes, 2, attributes, indices, 1, &failed, stream));
  std::printf("failed %zu\n", failed);
  CUDA_MEMCPY3D_BATCH_OP box{};
  box.src.type = box.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  box.src.op.ptr = {reinterpret_cast<CUdeviceptr>(from), 8, 2, {}};
  box.dst.op.ptr = {device, 16, 0, {}};
  box.extent = {4, 2, 3};
  box.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  SHOW(cuMemsetD8_v2(device, 0xee, 256));
  SHOW(cuMemcpy3DBatchAsync_v2(1, &box, 0, stream));
  SHOW(cuStreamSynchronize(stream));
  SHOW_VALUE(cuMemcpyDtoH_v2(to, device, 256), "%d %d %d %d", to[0], to[17], to[33], to[4]);
  SHOW(cuMemcpy3DBatchAsync(1, &box, &failed, 0, stream));
  SHOW(cuMemcpy3DBatchAsync_v2(0, &box, 0, stream));
  SHOW(cuMemcpy3DBatchAsync_v2(1, nullptr, 0, stream));
  SHOW(cuMemcpy3DBatchAsync_v2(1, &box, 7, stream));
  SHOW(cuMemcpy3DBatchAsync_v2(1, &box, 0, nullptr));
  box.src.op.ptr.rowLength = 3;
  SHOW(cuMemcpy3DBatchAsync_v2(1, &box, 0, stream));
  box.src.op.ptr.rowLength = 8;
  box.extent.depth = 0;
  SHOW(cuMemcpy3DBatchAsync_v2(1, &box, 0, stream));
  box.extent.depth = 1;
  box.dst.type = static_cast<CUmemcpy3DOperandType>(9);
  SHOW(cuMemcpy3DBatchAsync_v2(1, &box, 0, stream));
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  CUDA_MEMCPY3D_PEER peer{};
  peer.srcMemoryType = CU_MEMORYTYPE_DEVICE, peer.srcDevice = device, peer.srcContext = context, peer.srcPitch = 16, peer.srcHeight = 2;
  peer.dstMemoryType = CU_MEMORYTYPE_DEVICE, peer.dstDevice = device + 1024, peer.dstContext = context, peer.dstPitch = 32, peer.dstHeight = 2;
  peer.WidthInBytes = 8, peer.Height = 2, peer.Depth = 2;
  SHOW(cuMemcpy3DPeer(&peer));
  SHOW(cuMemcpy3DPeerAsync(&peer, stream));
  SHOW(cuMemcpy3DPeer_ptds(&peer));
  SHOW(cuMemcpy3DPeerAsync_ptsz(&peer, nullptr));
  SHOW(cuMemcpy3DPeer(nullptr));
  SHOW(cuMemcpy3DPeerAsync(&peer, wild<CUstream>()));
  peer.dstContext = nullptr;
  SHOW(cuMemcpy3DPeer(&peer));
  peer.dstContext = wild<CUcontext>();
  SHOW(cuMemcpy3DPeer(&peer));
  peer.dstContext = context;
  peer.dstDevice = kWildAddress;
  SHOW(cuMemcpy3DPeer(&peer));
  SHOW(cuStreamSynchronize(stream));
  cuMemFree_v2(device);
  cuMemFreeHost(pinned);
  cuStreamDestroy_v2(stream);
}

void pools_by_place() {
  CUmemoryPool pool = nullptr, standard = nullptr, made = nullptr;
  CUmemLocation place{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  cuDeviceGetDefaultMemPool(&standard, 0);
  SHOW_VALUE(cuMemGetDefaultMemPool(&pool, &place, CU_MEM_ALLOCATION_TYPE_PINNED), "%d", pool == standard);
  SHOW_VALUE(cuMemGetMemPool(&pool, &place, CU_MEM_ALLOCATION_TYPE_PINNED), "%d", pool == standard);
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = place;
  SHOW(cuMemPoolCreate(&made, &properties));
  SHOW(cuMemSetMemPool(&place, CU_MEM_ALLOCATION_TYPE_PINNED, made));
  SHOW_VALUE(cuMemGetMemPool(&pool, &place, CU_MEM_ALLOCATION_TYPE_PINNED), "%d", pool == made);
  SHOW_VALUE(cuDeviceGetMemPool(&pool, 0), "%d", pool == made);
  SHOW(cuMemSetMemPool(&place, CU_MEM_ALLOCATION_TYPE_PINNED, wild<CUmemoryPool>()));
  SHOW(cuMemSetMemPool(&place, CU_MEM_ALLOCATION_TYPE_PINNED, standard));
  SHOW(cuMemSetMemPool(nullptr, CU_MEM_ALLOCATION_TYPE_PINNED, standard));
  SHOW(cuMemGetMemPool(nullptr, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
  SHOW(cuMemGetMemPool(&pool, nullptr, CU_MEM_ALLOCATION_TYPE_PINNED));
  SHOW(cuMemGetDefaultMemPool(&pool, &place, static_cast<CUmemAllocationType>(77)));
  place.id = 9;
  SHOW(cuMemGetDefaultMemPool(&pool, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
  place = {CU_MEM_LOCATION_TYPE_NONE, 0};
  SHOW(cuMemGetDefaultMemPool(&pool, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
  SHOW(cuMemPoolDestroy(made));
}

void atomics() {
  unsigned capabilities[2] = {};
  CUatomicOperation operations[] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS};
  SHOW(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 2, 0));
  SHOW(cuDeviceGetHostAtomicCapabilities(nullptr, operations, 2, 0));
  SHOW(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 0, 0));
  SHOW(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 2, 9));
  SHOW(cuDeviceGetP2PAtomicCapabilities(capabilities, operations, 2, 0, 0));
  SHOW(cuDeviceGetP2PAtomicCapabilities(capabilities, operations, 2, 0, 9));
  operations[1] = static_cast<CUatomicOperation>(99);
  SHOW(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 2, 0));
}

void tensor_maps() {
  alignas(128) CUtensorMap map{}, other{};
  CUdeviceptr tensor = 0;
  cuMemAlloc_v2(&tensor, 1 << 20);
  cuuint64_t sizes[5] = {64, 32, 8, 4, 2}, strides[4] = {128, 4096, 32768, 131072};
  cuuint32_t box[5] = {32, 8, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
  const auto encode = [&](CUtensorMap* to, cuuint32_t rank, CUdeviceptr address) {
    return cuTensorMapEncodeTiled(to, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, reinterpret_cast<void*>(address), sizes, strides, box, steps,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  SHOW(encode(&map, 3, tensor));
  SHOW(encode(&other, 3, tensor));
  std::printf("the same: %d\n", std::memcmp(&map, &other, sizeof map) == 0);
  SHOW(cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(tensor + 4096)));
  SHOW(encode(&other, 3, tensor + 4096));
  std::printf("the same: %d\n", std::memcmp(&map, &other, sizeof map) == 0);
  SHOW(cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(tensor + 4)));
  SHOW(cuTensorMapReplaceAddress(nullptr, reinterpret_cast<void*>(tensor)));
  CUtensorMap nothing{};
  SHOW(cuTensorMapReplaceAddress(&nothing, reinterpret_cast<void*>(tensor)));
  SHOW(encode(nullptr, 3, tensor));
  SHOW(encode(reinterpret_cast<CUtensorMap*>(reinterpret_cast<char*>(&map) + 8), 3, tensor));
  SHOW(encode(&map, 0, tensor));
  SHOW(encode(&map, 6, tensor));
  SHOW(encode(&map, 0xffffffff, tensor));
  SHOW(encode(&map, 1, tensor));
  SHOW(encode(&map, 5, tensor));
  SHOW(encode(&map, 3, tensor + 8));
  box[0] = 3;
  SHOW(encode(&map, 3, tensor));
  box[0] = 300;
  SHOW(encode(&map, 3, tensor));
  box[0] = 32;
  strides[0] = 100;
  SHOW(encode(&map, 3, tensor));
  strides[0] = 128;
  sizes[1] = 0;
  SHOW(encode(&map, 3, tensor));
  sizes[1] = 32;
  steps[1] = 9;
  SHOW(encode(&map, 3, tensor));
  steps[1] = 1;
  SHOW(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, reinterpret_cast<void*>(tensor), nullptr, strides, box, steps,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  int lower[3] = {-1, -1, -1}, upper[3] = {1, 1, 1};
  const auto columns = [&](cuuint32_t rank, cuuint32_t channels, cuuint32_t pixels) {
    return cuTensorMapEncodeIm2col(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, reinterpret_cast<void*>(tensor), sizes, strides, lower, upper,
                                   channels, pixels, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                   CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  SHOW(columns(4, 64, 128));
  SHOW(columns(2, 64, 128));
  SHOW(columns(4, 300, 128));
  SHOW(columns(4, 64, 2000));
  lower[0] = -1000;
  SHOW(columns(4, 64, 128));
  const auto wide = [&](CUtensorMapSwizzle swizzle) {
    return cuTensorMapEncodeIm2colWide(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, reinterpret_cast<void*>(tensor), sizes, strides, -1, 1, 64, 128,
                                       steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, swizzle,
                                       CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  SHOW(wide(CU_TENSOR_MAP_SWIZZLE_128B));
  SHOW(wide(CU_TENSOR_MAP_SWIZZLE_NONE));
  cuMemFree_v2(tensor);
}

void logs_and_dumps() {
  CUlogsCallbackHandle callback = nullptr;
  CUlogIterator iterator = 99, begin = 0;
  static int calls = 0;
  char text[2048];
  size_t size = sizeof text;
  CUmodule module = nullptr;
  SHOW(cuLogsRegisterCallback([](void*, CUlogLevel level, char* message, size_t length) { calls += level == CU_LOG_LEVEL_ERROR && std::strlen(message) == length; },
                              nullptr, &callback));
  SHOW(cuLogsRegisterCallback(nullptr, nullptr, &callback));
  SHOW(cuLogsCurrent(&begin, 0));
  SHOW(cuLogsCurrent(nullptr, 0));
  SHOW(cuLogsCurrent(&iterator, 1));
  iterator = begin;
  SHOW_VALUE(cuLogsDumpToMemory(&iterator, text, &size, 0), "%zu", size);
  SHOW(cuModuleLoadData(&module, ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry broken() { nonsense; }\n"));
  size = sizeof text;
  SHOW_VALUE(cuLogsDumpToMemory(&iterator, text, &size, 0), "%d", size > 20 && size == std::strlen(text) && text[size - 1] == '\n');
  std::printf("called %d\n", calls > 0);
  size = sizeof text;
  SHOW_VALUE(cuLogsDumpToMemory(&iterator, text, &size, 0), "%zu", size);
  iterator = begin;
  size = 4;
  SHOW(cuLogsDumpToMemory(&iterator, text, &size, 0));
  std::printf("size %zu\n", size);
  SHOW(cuLogsDumpToMemory(nullptr, nullptr, &size, 0));
  SHOW(cuLogsDumpToMemory(nullptr, text, &size, 3));
  SHOW(cuLogsDumpToFile(&iterator, nullptr, 0));
  SHOW(cuLogsDumpToFile(&iterator, "/no/such/folder/file", 0));
  SHOW(cuLogsDumpToFile(&iterator, "/dev/null", 0));
  SHOW_VALUE(cuLogsCurrent(&begin, 0), "%d", begin == iterator);
  SHOW(cuLogsUnregisterCallback(callback));
  SHOW(cuLogsUnregisterCallback(callback));
  bool yes = true, seen = false;
  unsigned flags = 9;
  size = sizeof yes;
  SHOW_VALUE(cuCoredumpGetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size), "%d", seen);
  SHOW(cuCoredumpSetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &yes, &size));
  SHOW_VALUE(cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size), "%d", seen);
  yes = false;
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &yes, &size));
  SHOW_VALUE(cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size), "%d", seen);
  SHOW_VALUE(cuCoredumpGetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &seen, &size), "%d", seen);
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_PIPE, text, &size));
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_USER_TRIGGER, &yes, &size));
  for (int id = 0; id < 9; ++id) {
    size = 0;
    const CUresult result = cuCoredumpGetAttribute(static_cast<CUcoredumpSettings>(id), nullptr, &size);
    std::printf("dump attribute %d -> %s %zu\n", id, name_of(result), size);
  }
  size = sizeof flags;
  SHOW_VALUE(cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size), "%u", flags);
  flags = CU_COREDUMP_LIGHTWEIGHT_FLAGS;
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
  SHOW_VALUE(cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size), "%u", flags);
  flags = 0xff00;
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
  size = 1;
  SHOW(cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
  char name[] = "my.dump";
  size = sizeof name;
  SHOW(cuCoredumpSetAttribute(CU_COREDUMP_FILE, name, &size));
  size = sizeof text;
  SHOW_VALUE(cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, &size), "%s", text);
  size = 3;
  SHOW(cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, &size));
  SHOW(cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, nullptr));
  CUasyncCallbackHandle notification = nullptr;
  SHOW(cuDeviceRegisterAsyncNotification(0, [](CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {}, nullptr, &notification));
  SHOW(cuDeviceRegisterAsyncNotification(9, [](CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {}, nullptr, &notification));
  SHOW(cuDeviceRegisterAsyncNotification(0, nullptr, nullptr, &notification));
  SHOW(cuDeviceUnregisterAsyncNotification(0, nullptr));
  SHOW(cuDeviceUnregisterAsyncNotification(0, notification));
  SHOW(cuDeviceUnregisterAsyncNotification(0, notification));
}

std::atomic<int> destroyed{0};
void destroy(void*) { ++destroyed; }

bool becomes(int count) {
  for (int i = 0; i < 1000 && destroyed != count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return destroyed == count;
}

void user_objects() {
  CUuserObject object = nullptr, second = nullptr;
  CUgraph graph = nullptr, clone = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphNode node = nullptr;
  CUstream stream = nullptr, releasing = nullptr;
  CUdeviceptr word = 0;
  SHOW(cuUserObjectCreate(&object, nullptr, destroy, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  SHOW(cuUserObjectCreate(nullptr, nullptr, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  SHOW(cuUserObjectCreate(&second, nullptr, nullptr, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  SHOW(cuUserObjectCreate(&second, nullptr, destroy, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  SHOW(cuUserObjectCreate(&second, nullptr, destroy, 1, 0));
  SHOW(cuUserObjectRetain(object, 1));
  SHOW(cuUserObjectRetain(object, 0));
  SHOW(cuUserObjectRetain(nullptr, 1));
  SHOW(cuUserObjectRetain(wild<CUuserObject>(), 1));
  SHOW(cuUserObjectRelease(object, 2));
  SHOW(cuUserObjectRelease(object, 5));
  std::printf("destroyed %d\n", destroyed.load());
  SHOW(cuUserObjectRelease(object, 1));
  SHOW(cuUserObjectRelease(object, 1));
  std::printf("destroyed %d\n", destroyed.load());
  cuGraphCreate(&graph, 0);
  SHOW(cuUserObjectCreate(&object, nullptr, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  SHOW(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  SHOW(cuGraphRetainUserObject(graph, object, 1, 0));
  SHOW(cuGraphReleaseUserObject(graph, object, 1));
  SHOW(cuGraphReleaseUserObject(graph, object, 5));
  SHOW(cuGraphRetainUserObject(graph, object, 1, 77));
  SHOW(cuGraphRetainUserObject(graph, nullptr, 1, 0));
  SHOW(cuGraphRetainUserObject(nullptr, object, 1, 0));
  SHOW(cuGraphReleaseUserObject(graph, wild<CUuserObject>(), 1));
  SHOW(cuGraphClone(&clone, graph));
  SHOW(cuGraphDestroy(graph));
  std::printf("destroyed %d\n", destroyed.load());
  // An executable graph holds it until its launches are through.
  cuMemAlloc_v2(&word, 64);
  cuMemsetD8_v2(word, 0, 64);
  cuCtxSynchronize();
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuStreamCreate(&releasing, CU_STREAM_NON_BLOCKING);
  CUDA_MEMSET_NODE_PARAMS fill{word + 8, 4, 7, 4, 1, 1};
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  SHOW(cuGraphAddMemsetNode(&node, clone, nullptr, 0, &fill, context));
  SHOW(cuGraphInstantiateWithFlags(&exec, clone, 0));
  SHOW(cuGraphDestroy(clone));
  SHOW(cuStreamWaitValue32_v2(stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
  SHOW(cuGraphLaunch(exec, stream));
  SHOW(cuGraphExecDestroy(exec));
  std::printf("destroyed %d\n", destroyed.load());
  SHOW(cuStreamWriteValue32_v2(releasing, word, 1, 0));
  SHOW(cuStreamSynchronize(stream));
  std::printf("destroyed in the end %d\n", becomes(2));
  cuMemFree_v2(word);
}

void unified_functions() {
  CUlibrary library = nullptr;
  void* function = nullptr;
  cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0);
  SHOW(cuLibraryGetUnifiedFunction(&function, library, "fill"));
  SHOW(cuLibraryGetUnifiedFunction(nullptr, library, "fill"));
  SHOW(cuLibraryGetUnifiedFunction(&function, library, nullptr));
  SHOW(cuLibraryGetUnifiedFunction(&function, nullptr, "fill"));
  cuLibraryUnload(library);
}

}  // namespace

void more_calls() {
  first_versions();
  old_launches();
  batches();
  pools_by_place();
  atomics();
  tensor_maps();
  logs_and_dumps();
  user_objects();
  unified_functions();
}

}  // namespace parity
