// Batches of copies, memory pools by location, atomic capabilities.
#define __CUDA_API_VERSION_INTERNAL  // declares every version under its own name
#include <cuda.h>

#include <cstring>

#include "tests/parity/show.h"

namespace parity {

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
  CUdeviceptr targets[] = {device, device + 256},
              sources[] = {reinterpret_cast<CUdeviceptr>(from), reinterpret_cast<CUdeviceptr>(pinned)};
  size_t sizes[] = {256, 100}, indices[] = {0, 1}, failed = 99;
  CUmemcpyAttributes attributes[2] = {};
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  const auto batch = [&](size_t count, size_t kinds) {
    return cuMemcpyBatchAsync_v2(targets, sources, sizes, count, attributes, indices, kinds, stream);
  };
  REQUIRE(CUDA_SUCCESS, batch(2, 2));
  std::memset(pinned, 0, 256);  // already read
  REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(stream));
  REQUIRE(CUDA_SUCCESS, cuMemcpyDtoH_v2(to, device + 100, 256));
  EXPECT(std::memcmp(to, from + 100, 156) == 0 && std::memcmp(to + 156, from, 100) == 0);
  REQUIRE(CUDA_SUCCESS, batch(2, 1));
  SHOW(batch(0, 1));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, batch(1, 2));  // more attributes than copies
  SHOW(batch(2, 0));
  indices[0] = 1;
  REQUIRE(CUDA_ERROR_INVALID_VALUE, batch(2, 2));  // the first index must be 0
  indices[0] = 0;
  indices[1] = 0;
  REQUIRE(CUDA_ERROR_INVALID_VALUE, batch(2, 2));  // each index must be greater than the previous one
  indices[1] = 1;
  attributes[1].srcAccessOrder = static_cast<CUmemcpySrcAccessOrder>(9);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, batch(2, 2));
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
  cuMemsetD8_v2(device, 0, 256);
  cuCtxSynchronize();
  SHOW(cuMemcpyBatchAsync(targets, sources, sizes, 2, attributes, indices, 1, &failed, stream));
  std::printf("failed %zu\n", failed);
  REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(stream));
  REQUIRE(CUDA_SUCCESS, cuMemcpyDtoH_v2(to, device, 256));
  EXPECT(std::memcmp(to, from, 256) == 0);
  CUDA_MEMCPY3D_BATCH_OP box{};
  box.src.type = box.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  box.src.op.ptr = {reinterpret_cast<CUdeviceptr>(from), 8, 2, {}};
  box.dst.op.ptr = {device, 16, 0, {}};
  box.extent = {4, 2, 3};
  box.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  SHOW(cuMemsetD8_v2(device, 0xee, 256));
  REQUIRE(CUDA_SUCCESS, cuMemcpy3DBatchAsync_v2(1, &box, 0, stream));
  REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(stream));
  REQUIRE(CUDA_SUCCESS, cuMemcpyDtoH_v2(to, device, 256));
  // The source has rows of 8 and layers of 2 rows; the destination rows of 16 and packed layers: the extent
  // has 2 rows.
  EXPECT(to[0] == from[0] && to[17] == from[9] && to[33] == from[17] && to[4] == 0xee);
  SHOW(cuMemcpy3DBatchAsync(1, &box, &failed, 0, stream));
  SHOW(cuMemcpy3DBatchAsync_v2(0, &box, 0, stream));
  SHOW(cuMemcpy3DBatchAsync_v2(1, nullptr, 0, stream));
  SHOW(cuMemcpy3DBatchAsync_v2(1, &box, 7, stream));
  SHOW(cuMemcpy3DBatchAsync_v2(1, &box, 0, nullptr));
  box.src.op.ptr.rowLength = 3;
  REQUIRE(CUDA_ERROR_INVALID_VALUE,
          cuMemcpy3DBatchAsync_v2(1, &box, 0, stream));  // row length smaller than the width
  box.src.op.ptr.rowLength = 8;
  box.extent.depth = 0;
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync_v2(1, &box, 0, stream));
  box.extent.depth = 1;
  box.dst.type = static_cast<CUmemcpy3DOperandType>(9);
  SHOW(cuMemcpy3DBatchAsync_v2(1, &box, 0, stream));
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  CUDA_MEMCPY3D_PEER peer{};
  peer.srcMemoryType = CU_MEMORYTYPE_DEVICE, peer.srcDevice = device, peer.srcContext = context,
  peer.srcPitch = 16, peer.srcHeight = 2;
  peer.dstMemoryType = CU_MEMORYTYPE_DEVICE, peer.dstDevice = device + 1024, peer.dstContext = context,
  peer.dstPitch = 32, peer.dstHeight = 2;
  peer.WidthInBytes = 8, peer.Height = 2, peer.Depth = 2;
  REQUIRE(CUDA_SUCCESS, cuCtxSynchronize());
  REQUIRE(CUDA_SUCCESS, cuMemcpyHtoD_v2(device, from, 256));
  REQUIRE(CUDA_SUCCESS, cuMemcpy3DPeer(&peer));
  REQUIRE(CUDA_SUCCESS, cuMemcpyDtoH_v2(to, device + 1024, 256));
  EXPECT(to[7] == from[7] && to[32] == from[16] && to[64] == from[32] && to[96] == from[48]);
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
  REQUIRE(CUDA_SUCCESS, cuMemGetDefaultMemPool(&pool, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT(pool == standard);
  SHOW_VALUE(cuMemGetMemPool(&pool, &place, CU_MEM_ALLOCATION_TYPE_PINNED), "%d", pool == standard);
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = place;
  SHOW(cuMemPoolCreate(&made, &properties));
  REQUIRE(CUDA_SUCCESS, cuMemSetMemPool(&place, CU_MEM_ALLOCATION_TYPE_PINNED, made));
  REQUIRE(CUDA_SUCCESS, cuMemGetMemPool(&pool, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT(pool == made);
  REQUIRE(CUDA_SUCCESS, cuDeviceGetMemPool(&pool, 0));
  EXPECT(pool == made);
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

}  // namespace parity
