// Features of some devices only: multicast objects and the decompression engine.
#include "tests/e2e/apps/scenario.h"

using namespace app;

#if CUDA_VERSION >= 12080
SCENARIO(multicast_objects) {
  Device device;
  CUmulticastObjectProp properties{};
  properties.numDevices = 1, properties.size = 1;
  size_t least = 0, best = 0;
  OK(cuMulticastGetGranularity(&least, &properties, CU_MULTICAST_GRANULARITY_MINIMUM));
  OK(cuMulticastGetGranularity(&best, &properties, CU_MULTICAST_GRANULARITY_RECOMMENDED));
  EXPECT(least > 0 && best >= least);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle object = 0, memory = 0;
  properties.size = 4 * best;
  OK(cuMulticastCreate(&object, &properties));
  OK(cuMemCreate(&memory, 4 * best, &prop, 0));
  GIVES(CUDA_ERROR_INVALID_DEVICE,
        cuMulticastBindMem(object, 0, memory, 0, best, 0));  // the object has no device yet
  OK(cuMulticastAddDevice(object, device.device));
  OK(cuMulticastBindMem(object, best, memory, 2 * best, 2 * best, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(object, 3 * best, memory, 0, 2 * best, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(memory, 0, memory, 0, best, 0));  // not an object
  CUdeviceptr place = 0;
  OK(cuMemAddressReserve(&place, 4 * best, 0, 0, 0));
  OK(cuMemMap(place, 4 * best, 0, memory, 0));
  OK(cuMulticastBindAddr(object, 0, place + best, best, 0));
  OK(cuMulticastUnbind(object, device.device, best, 2 * best));
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuMulticastUnbind(object, device.device, best, 2 * best));  // already unbound
  OK(cuMulticastUnbind(object, device.device, 0, best));
  OK(cuMemUnmap(place, 4 * best));
  OK(cuMemAddressFree(place, 4 * best));
  OK(cuMemRelease(memory));
  OK(cuMemRelease(object));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(object, device.device));
}

// The data is stored uncompressed, so the output of any engine is known.
SCENARIO(decompression) {
  constexpr unsigned kBytes = 6000;
  Device device;
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, 1u << 20));
  std::vector<uint8_t> packed(kBytes);
  for (size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<uint8_t>(i * 7);
  OK(cuMemcpyHtoD(memory, packed.data(), kBytes));
  const auto operation = [&](size_t from, size_t to, size_t bytes, size_t count) {
    CUmemDecompressParams made{};
    made.src = reinterpret_cast<const void*>(memory + from), made.srcNumBytes = bytes;
    made.dst = reinterpret_cast<void*>(memory + to), made.dstNumBytes = bytes;
    made.dstActBytes = reinterpret_cast<cuuint32_t*>(memory + count);
    made.algo = CU_MEM_DECOMPRESS_ALGORITHM_LZ4;
    return made;
  };
  CUmemDecompressParams both[] = {operation(0, 100'000, kBytes, 300'000),
                                  operation(1000, 200'000, 2000, 300'004)};
  size_t failed = 7;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemBatchDecompressAsync(both, 2, 0, &failed, stream));
  OK(cuStreamSynchronize(stream));
  EXPECT(failed == SIZE_MAX);
  EXPECT(download<uint8_t>(memory + 100'000, kBytes) == packed);
  EXPECT(download<uint8_t>(memory + 200'000, 2000) ==
         std::vector<uint8_t>(packed.begin() + 1000, packed.begin() + 3000));
  EXPECT(download<uint32_t>(memory + 300'000, 2) == (std::vector<uint32_t>{kBytes, 2000}));
  both[1].dst = reinterpret_cast<void*>(memory + (1u << 30));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemBatchDecompressAsync(both, 2, 0, &failed, stream));
  EXPECT(failed == 1);
  OK(cuMemFree(memory));
}
#endif
