// Processes that share device memory: IPC handles, descriptors, fabric handles, memory pools.
#include "tests/e2e/apps/interprocess.h"

using namespace app;

namespace {

CUdeviceptr map(CUmemGenericAllocationHandle memory, size_t size) {
  CUdeviceptr address = 0;
  OK(cuMemAddressReserve(&address, size, 0, 0, 0));
  OK(cuMemMap(address, size, 0, memory, 0));
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OK(cuMemSetAccess(address, size, &access, 1));
  return address;
}
void unmap(CUdeviceptr address, size_t size) {
  OK(cuMemUnmap(address, size));
  OK(cuMemAddressFree(address, size));
}

}  // namespace

// --- cuIpc...Mem ---

SCENARIO(interprocess_memory) {
  Peer other = start("interprocess_memory_other");
  Device device;
  Kernels kernels;
  CUdeviceptr large = 0, small = 0, large_again = 0;
  OK(cuMemAlloc(&small, 100));
  OK(cuMemAlloc(&small, kCount * 4));  // not at the start of its block
  OK(cuMemAlloc(&large, 20 << 20));
  OK(kernels.launch("fill", blocks(kCount), 256, nullptr, small, 7u, kCount));
  OK(kernels.launch("fill", blocks(kCount), 256, nullptr, large, 100u, kCount));
  CUipcMemHandle of_small{}, of_large{}, again{};
  OK(cuIpcGetMemHandle(&of_small, small));
  OK(cuIpcGetMemHandle(&of_large, large));
  OK(cuIpcGetMemHandle(&again, large + 4096));  // any address in the allocation gives the same handle
  EXPECT(std::memcmp(&again, &of_large, sizeof again) == 0);
  GIVES(CUDA_ERROR_INVALID_CONTEXT,
        cuIpcOpenMemHandle(&large_again, of_large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuCtxSynchronize());
  expect_values(small, 7);  // the failed call changed nothing
  other.send(of_small);
  other.send(of_large);
  other.await('1');
  expect_values(small, 8);
  expect_values(large, 105);
  // After the free no process can open the memory, but processes that have opened it keep it.
  OK(cuMemFree(large));
  CUdeviceptr next = 0;
  OK(cuMemAlloc(&next, 20 << 20));
  OK(cuMemsetD8(next, 0xee, 20 << 20));
  OK(cuCtxSynchronize());
  other.say('2');
  other.await('3');
  other.send(of_large);
  other.await('4');
  other.ends_well();
  const auto values = download<uint8_t>(next, 4096);
  for (const uint8_t value : values) EXPECT(value == 0xee);
  std::printf("memory was shared\n");
}

SCENARIO(interprocess_memory_other) {
  const Peer other;
  Device device;
  Kernels kernels;
  const auto of_small = other.receive<CUipcMemHandle>();
  const auto of_large = other.receive<CUipcMemHandle>();
  CUdeviceptr small = 0, large = 0, large_again = 0;
  const size_t before = free_bytes();
  OK(cuIpcOpenMemHandle(&small, of_small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcOpenMemHandle(&large, of_large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcOpenMemHandle(&large_again, of_large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT(large == large_again);
  EXPECT(free_bytes() == before);  // the memory is charged once
  CUdeviceptr base = 0;
  size_t size = 0;
  OK(cuMemGetAddressRange(&base, &size, large + 1000));
  EXPECT(base == large && size == 20 << 20);
  unsigned type = 0;
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, small + 8));
  EXPECT(type == CU_MEMORYTYPE_DEVICE);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(large));
  expect_values(small, 7);
  expect_values(large, 100);
  OK(kernels.launch("add", blocks(kCount), 256, nullptr, small, 1u, kCount));
  OK(kernels.launch("add", blocks(kCount), 256, nullptr, large, 5u, kCount));
  OK(cuCtxSynchronize());
  other.say('1');
  other.await('2');
  expect_values(large, 105);
  OK(cuIpcCloseMemHandle(small));
  OK(cuIpcCloseMemHandle(large));
  expect_values(large, 105);  // it was opened twice
  OK(cuIpcCloseMemHandle(large));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(large));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(large + 100));
  other.say('3');
  const auto replayed = other.receive<CUipcMemHandle>();
  // NVIDIA's driver: CUDA_ERROR_NOT_PERMITTED
  EXPECT(cuIpcOpenMemHandle(&large, replayed, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
  other.say('4');
}

// --- Descriptors ---

SCENARIO(interprocess_descriptors) {
  Peer other = start("interprocess_descriptors_other");
  Device device;
  Kernels kernels;
  const CUmemAllocationProp prop = shareable();
  CUmemGenericAllocationHandle memory = 0, private_one = 0, twin = 0;
  OK(cuMemCreate(&memory, 2 * kGranule, &prop, 0));
  CUmemAllocationProp none = prop;
  none.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  OK(cuMemCreate(&private_one, kGranule, &none, 0));
  int descriptor = -1;
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuMemExportToShareableHandle(&descriptor, private_one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuMemRelease(private_one));
  CUdeviceptr address = map(memory, 2 * kGranule);
  OK(kernels.launch("fill", blocks(kCount), 256, nullptr, address, 3u, kCount));
  OK(cuMemExportToShareableHandle(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  // An import in the same process gives another handle of the same memory.
  other.await('0');  // its context takes memory
  const size_t before = free_bytes();
  OK(cuMemImportFromShareableHandle(&twin, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT(free_bytes() == before);
  const CUdeviceptr second = map(twin, 2 * kGranule);
  expect_values(second, 3);
  unmap(second, 2 * kGranule);
  OK(cuMemRelease(twin));
  OK(cuCtxSynchronize());
  other.send('d', descriptor);
  ::close(descriptor);
  other.await('1');
  expect_values(address, 13);
  // The handle of mapped memory can be obtained again after its release.
  OK(cuMemRelease(memory));
  CUmemGenericAllocationHandle back = 0;
  OK(cuMemRetainAllocationHandle(&back, reinterpret_cast<void*>(address + 100)));
  OK(cuMemExportToShareableHandle(&descriptor, back, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  other.send('e', descriptor);
  other.await('2');
  OK(cuMemRelease(back));
  unmap(address, 2 * kGranule);
  other.say('3');
  other.await('4');
  other.ends_well();
  OK(cuMemCreate(&memory, 2 * kGranule, &prop, 0));  // new memory must not contain the old data
  address = map(memory, 2 * kGranule);
  for (const uint32_t value : download<uint32_t>(address, kCount)) EXPECT(value == 0);
  std::printf("descriptors were shared\n");
}

SCENARIO(interprocess_descriptors_other) {
  const Peer other;
  Device device;
  Kernels kernels;
  other.say('0');
  int descriptor = -1;
  (void)other.receive<char>(&descriptor);
  void* const shared = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  CUmemGenericAllocationHandle memory = 0, again = 0;
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuMemImportFromShareableHandle(&memory, reinterpret_cast<void*>(intptr_t{kOther}),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  OK(cuMemImportFromShareableHandle(&memory, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  OK(cuMemImportFromShareableHandle(&again, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ::close(descriptor);
  CUmemAllocationProp prop{};
  OK(cuMemGetAllocationPropertiesFromHandle(&prop, memory));
  EXPECT(prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && prop.location.id == 0);
  OK(cuMemRelease(again));
  const CUdeviceptr address = map(memory, 2 * kGranule);
  expect_values(address, 3);
  OK(kernels.launch("add", blocks(kCount), 256, nullptr, address, 10u, kCount));
  OK(cuCtxSynchronize());
  other.say('1');
  (void)other.receive<char>(&descriptor);
  OK(cuMemImportFromShareableHandle(&again, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  OK(cuMemRelease(again));
  ::close(descriptor);
  other.say('2');
  other.await('3');
  expect_values(address, 13);  // the exporting process has released it
  const size_t before = free_bytes();
  unmap(address, 2 * kGranule);
  EXPECT(free_bytes() == before);
  OK(cuMemRelease(memory));
  await_free(before + 2 * kGranule);
  other.say('4');
}

// --- Fabric handles and memory pools, which softgpu alone does not support ---

#if CUDA_VERSION >= 12030
SCENARIO(interprocess_pools) {
  Peer other = start("interprocess_pools_other");
  Device device;
  Kernels kernels;
  const CUmemAllocationProp prop = shareable(CU_MEM_HANDLE_TYPE_FABRIC);
  CUmemGenericAllocationHandle memory = 0;
  OK(cuMemCreate(&memory, kGranule, &prop, 0));
  const CUdeviceptr address = map(memory, kGranule);
  OK(kernels.launch("fill", blocks(kCount), 256, nullptr, address, 9u, kCount));
  CUmemFabricHandle fabric{};
  OK(cuMemExportToShareableHandle(&fabric, memory, CU_MEM_HANDLE_TYPE_FABRIC, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuMemExportToShareableHandle(&fabric, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));

  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pool = nullptr, standard = nullptr;
  CUstream stream = nullptr;
  OK(cuMemPoolCreate(&pool, &props));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr first = 0, second = 0, unshared = 0;
  OK(cuMemAllocFromPoolAsync(&first, kCount * 4, pool, stream));
  OK(cuDeviceSetMemPool(0, pool));
  OK(cuMemAllocAsync(&second, kCount * 4, stream));
  OK(cuDeviceGetDefaultMemPool(&standard, 0));
  OK(cuDeviceSetMemPool(0, standard));
  OK(cuMemAllocAsync(&unshared, kCount * 4, stream));
  OK(kernels.launch("fill", blocks(kCount), 256, stream, first, 20u, kCount));
  OK(kernels.launch("fill", blocks(kCount), 256, stream, second, 30u, kCount));
  OK(cuStreamSynchronize(stream));
  CUmemPoolPtrExportData pointers[2] = {};
  CUipcMemHandle legacy{};
  OK(cuMemPoolExportPointer(&pointers[0], first));
  OK(cuMemPoolExportPointer(&pointers[1], second));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&pointers[1], unshared));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&legacy, first));
  int descriptor = -1;
  OK(cuMemPoolExportToShareableHandle(&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuMemPoolExportToShareableHandle(&descriptor, standard, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  other.send(fabric, descriptor);
  other.send(pointers);
  other.await('1');
  expect_values(address, 10);
  expect_values(first, 21);
  OK(cuMemFreeAsync(first, stream));
  OK(cuMemPoolDestroy(pool));
  other.ends_well();
  std::printf("pools were shared\n");
}

SCENARIO(interprocess_pools_other) {
  const Peer other;
  Device device;
  Kernels kernels;
  int descriptor = -1;
  auto fabric = other.receive<CUmemFabricHandle>(&descriptor);
  struct Pointers {
    CUmemPoolPtrExportData data[2];
  };
  auto pointers = other.receive<Pointers>();
  CUmemGenericAllocationHandle memory = 0;
  OK(cuMemImportFromShareableHandle(&memory, &fabric, CU_MEM_HANDLE_TYPE_FABRIC));
  const CUdeviceptr address = map(memory, kGranule);
  expect_values(address, 9);
  OK(kernels.launch("add", blocks(kCount), 256, nullptr, address, 1u, kCount));
  CUmemoryPool pool = nullptr, standard = nullptr;
  OK(cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUdeviceptr first = 0, second = 0, own = 0;
  OK(cuDeviceGetDefaultMemPool(&standard, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolImportPointer(&first, standard, &pointers.data[0]));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&own, 100, pool, nullptr));
  OK(cuMemPoolImportPointer(&first, pool, &pointers.data[0]));
  OK(cuMemPoolImportPointer(&second, pool, &pointers.data[1]));
  expect_values(first, 20);
  expect_values(second, 30);
  OK(kernels.launch("add", blocks(kCount), 256, nullptr, first, 1u, kCount));
  OK(cuCtxSynchronize());
  OK(cuMemFreeAsync(first, nullptr));
  OK(cuMemFree(second));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(second));
  other.say('1');
}
#endif
