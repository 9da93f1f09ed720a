#include <numeric>
#include <vector>

#include "tests/server/softgpu/runtime/fixture.h"

TEST_CASE_METHOD(ContextFixture, "copies memory to the device and back") {
  for (const size_t size : {size_t{1}, size_t{4096}, size_t{100'000}, size_t{20} << 20}) {
    std::vector<unsigned char> in(size), out(size);
    std::iota(in.begin(), in.end(), static_cast<unsigned char>(size));
    CUdeviceptr a = 0, b = 0;
    REQUIRE_OK(cuMemAlloc_v2(&a, size));
    REQUIRE_OK(cuMemAlloc_v2(&b, size));
    REQUIRE_OK(cuMemcpyHtoD_v2(a, in.data(), size));
    REQUIRE_OK(cuMemcpyDtoD_v2(b, a, size));
    REQUIRE_OK(cuMemcpyDtoH_v2(out.data(), b, size));
    CHECK(in == out);
    std::fill(out.begin(), out.end(), 0);
    REQUIRE_OK(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(out.data()), a, size, nullptr));
    REQUIRE_OK(cuStreamSynchronize(nullptr));
    CHECK(in == out);
    REQUIRE_OK(cuMemFree_v2(a));
    REQUIRE_OK(cuMemFree_v2(b));
    CHECK(cuMemFree_v2(a) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(cuMemFree_v2(0) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(ContextFixture, "large transfers at any address write only their own bytes") {
  constexpr size_t kSize = (size_t{130} << 20) + 12'345;
  std::vector<unsigned char> in(kSize + 16), out(kSize + 16, 7);
  uint32_t state = 1;
  for (auto& byte : in) byte = static_cast<unsigned char>((state = state * 1664525u + 1013904223u) >> 24);
  CUdeviceptr memory = 0;
  REQUIRE_OK(cuMemAlloc_v2(&memory, kSize + 16));
  REQUIRE_OK(cuMemsetD8_v2(memory, 9, kSize + 16));
  REQUIRE_OK(cuMemcpyHtoD_v2(memory + 3, in.data() + 1, kSize));
  REQUIRE_OK(cuMemcpyDtoH_v2(out.data() + 5, memory + 3, kSize));
  CHECK(std::equal(in.begin() + 1, in.begin() + 1 + kSize, out.begin() + 5));
  CHECK((out[4] == 7 && out[5 + kSize] == 7));
  REQUIRE_OK(cuMemcpyDtoH_v2(out.data(), memory, 3));
  REQUIRE_OK(cuMemcpyDtoH_v2(out.data() + 3, memory + 3 + kSize, 3));
  for (int at = 0; at < 6; ++at) CHECK(out[at] == 9);
  REQUIRE_OK(cuMemFree_v2(memory));
}

TEST_CASE_METHOD(ContextFixture, "rejects invalid device addresses and sizes") {
  std::vector<char> host(1 << 20);
  CUdeviceptr memory = 0;
  REQUIRE_OK(cuMemAlloc_v2(&memory, 1000));
  CHECK(cuMemcpyHtoD_v2(memory, host.data(), 1001) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoD_v2(memory + 999, host.data(), 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoD_v2(memory, host.data(), SIZE_MAX) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoD_v2(0, host.data(), 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoD_v2(0xdead'beef'0000, host.data(), 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoH_v2(host.data(), memory + (1ull << 30), 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoD_v2(memory, memory + (1ull << 30), 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD8_v2(memory, 0, 1001) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD32_v2(memory + 2, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAlloc_v2(&memory, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAlloc_v2(nullptr, 8) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuCtxSynchronize());
}

TEST_CASE_METHOD(ContextFixture, "cuMemAlloc fails beyond the device's memory") {
  size_t free = 0, total = 0;
  REQUIRE_OK(cuMemGetInfo_v2(&free, &total));
  CHECK(total == 256u << 20);
  CUdeviceptr memory = 0, more = 0;
  CHECK(cuMemAlloc_v2(&memory, total + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE_OK(cuMemAlloc_v2(&memory, free - (4 << 20)));
  CHECK(cuMemAlloc_v2(&more, 8 << 20) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE_OK(cuMemFree_v2(memory));
  REQUIRE_OK(cuMemAlloc_v2(&more, 8 << 20));
  REQUIRE_OK(cuMemFree_v2(more));
  size_t after = 0;
  REQUIRE_OK(cuMemGetInfo_v2(&after, &total));
  CHECK(after == free);
}

TEST_CASE_METHOD(ContextFixture, "memsets of all widths") {
  CUdeviceptr memory = 0;
  size_t pitch = 0;
  REQUIRE_OK(cuMemAllocPitch_v2(&memory, &pitch, 100, 8, 4));
  CHECK(pitch >= 100);
  std::vector<unsigned char> out(pitch * 8);
  REQUIRE_OK(cuMemsetD8_v2(memory, 1, pitch * 8));
  REQUIRE_OK(cuMemsetD2D32_v2(memory, pitch, 0x04030202, 25, 8));
  REQUIRE_OK(cuMemsetD2D16Async(memory, pitch, 0x0606, 1, 8, nullptr));
  REQUIRE_OK(cuMemcpyDtoH_v2(out.data(), memory, out.size()));
  for (size_t row = 0; row < 8; ++row) {
    CHECK(out[row * pitch] == 6);
    CHECK(out[row * pitch + 1] == 6);
    CHECK(out[row * pitch + 3] == 4);
    CHECK(out[row * pitch + 99] == 4);
    CHECK(out[row * pitch + 100] == 1);
  }
  CHECK(cuMemsetD2D8_v2(memory, 50, 0, 100, 8) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuMemFree_v2(memory));
}

TEST_CASE_METHOD(ContextFixture, "rows and boxes are copied with their pitches") {
  constexpr size_t kPitch = 64, kRows = 6, kSlices = 3;
  std::vector<unsigned char> in(kPitch * kRows * kSlices), out(in.size(), 0xff);
  std::iota(in.begin(), in.end(), 0);
  CUdeviceptr memory = 0;
  REQUIRE_OK(cuMemAlloc_v2(&memory, in.size()));
  REQUIRE_OK(cuMemcpyHtoD_v2(memory, in.data(), in.size()));
  CUDA_MEMCPY2D flat{};
  flat.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  flat.srcDevice = memory;
  flat.srcPitch = kPitch;
  flat.srcXInBytes = 8;
  flat.srcY = 1;
  flat.dstMemoryType = CU_MEMORYTYPE_HOST;
  flat.dstHost = out.data();
  flat.dstPitch = 16;
  flat.WidthInBytes = 16;
  flat.Height = 4;
  REQUIRE_OK(cuMemcpy2D_v2(&flat));
  for (size_t row = 0; row < 4; ++row) {
    for (size_t x = 0; x < 16; ++x) CHECK(out[row * 16 + x] == in[(row + 1) * kPitch + 8 + x]);
  }
  flat.Height = 100;
  CHECK(cuMemcpy2D_v2(&flat) == CUDA_ERROR_INVALID_VALUE);

  CUDA_MEMCPY3D box{};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = memory;
  box.srcPitch = kPitch;
  box.srcHeight = kRows;
  box.srcY = 2;
  box.srcZ = 1;
  box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.dstHost = out.data();
  box.dstPitch = 8;
  box.dstHeight = 3;
  box.WidthInBytes = 8;
  box.Height = 3;
  box.Depth = 2;
  REQUIRE_OK(cuMemcpy3DAsync_v2(&box, nullptr));
  REQUIRE_OK(cuCtxSynchronize());
  for (size_t z = 0; z < 2; ++z) {
    for (size_t y = 0; y < 3; ++y)
      CHECK(out[(z * 3 + y) * 8 + 5] == in[((z + 1) * kRows + y + 2) * kPitch + 5]);
  }
  REQUIRE_OK(cuMemFree_v2(memory));
}

TEST_CASE_METHOD(ContextFixture, "pinned and registered host memory") {
  void* pinned = nullptr;
  REQUIRE_OK(cuMemHostAlloc(&pinned, 10000, CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr address = 0;
  REQUIRE_OK(cuMemHostGetDevicePointer_v2(&address, pinned, 0));
  REQUIRE_OK(cuMemsetD8_v2(address, 7, 10000));
  CHECK(static_cast<unsigned char*>(pinned)[9999] == 7);
  unsigned type = 0;
  REQUIRE_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  CHECK(type == CU_MEMORYTYPE_HOST);
  unsigned flags = 0;
  REQUIRE_OK(cuMemHostGetFlags(&flags, pinned));
  CHECK((flags & CU_MEMHOSTALLOC_DEVICEMAP) != 0);
  REQUIRE_OK(cuMemFreeHost(pinned));
  CHECK(cuMemFreeHost(pinned) == CUDA_ERROR_INVALID_VALUE);

  std::vector<char> own(1 << 16, 3);
  CHECK(cuMemHostGetDevicePointer_v2(&address, own.data(), 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuMemHostRegister_v2(own.data(), own.size(), 0));
  CHECK(cuMemHostRegister_v2(own.data() + 100, 10, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  REQUIRE_OK(cuMemHostGetDevicePointer_v2(&address, own.data() + 5, 0));
  REQUIRE_OK(cuMemsetD8_v2(address, 9, 1));
  CHECK(own[5] == 9);
  REQUIRE_OK(cuMemHostUnregister(own.data()));
  CHECK(cuMemHostUnregister(own.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_CASE_METHOD(ContextFixture, "returns attributes of pointers") {
  CUdeviceptr memory = 0;
  REQUIRE_OK(cuMemAlloc_v2(&memory, 5000));
  CUdeviceptr base = 0;
  size_t size = 0;
  REQUIRE_OK(cuMemGetAddressRange_v2(&base, &size, memory + 4999));
  CHECK(base == memory);
  CHECK(size == 5000);
  CHECK(cuMemGetAddressRange_v2(&base, &size, memory + 5000) == CUDA_ERROR_NOT_FOUND);
  CUcontext owner = nullptr;
  REQUIRE_OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
  CHECK(owner == context);
  int local = 0;
  unsigned type = 99;
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                              reinterpret_cast<CUdeviceptr>(&local)) == CUDA_ERROR_INVALID_VALUE);
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
  CUdeviceptr device_pointer = 1;
  void* data[] = {&type, &device_pointer};
  REQUIRE_OK(cuPointerGetAttributes(2, wanted, data, reinterpret_cast<CUdeviceptr>(&local)));
  CHECK(type == 0);
  CHECK(device_pointer == 0);
  REQUIRE_OK(cuPointerGetAttributes(2, wanted, data, memory));
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  CHECK(device_pointer == memory);
  REQUIRE_OK(cuMemFree_v2(memory));

  REQUIRE_OK(cuMemAllocManaged(&memory, 4096, CU_MEM_ATTACH_GLOBAL));
  *reinterpret_cast<volatile int*>(memory) = 42;
  int back = 0;
  REQUIRE_OK(cuMemcpyDtoH_v2(&back, memory, 4));
  CHECK(back == 42);
  REQUIRE_OK(cuMemFree_v2(memory));
}

TEST_CASE_METHOD(ContextFixture, "memory of a pool outlives the context that it was allocated in") {
  CUcontext other = nullptr;
  CUdeviceptr memory = 0;
  unsigned back = 0;
  REQUIRE_OK(cuCtxCreate_v2(&other, 0, device));
  REQUIRE_OK(cuMemAllocAsync(&memory, 4096, nullptr));
  REQUIRE_OK(cuMemsetD32_v2(memory, 42, 4));
  REQUIRE_OK(cuCtxSynchronize());
  REQUIRE_OK(cuCtxDestroy_v2(other));
  REQUIRE_OK(cuMemcpyDtoH_v2(&back, memory, 4));
  CHECK(back == 42);
  REQUIRE_OK(cuMemFreeAsync(memory, nullptr));
  REQUIRE_OK(cuCtxSynchronize());
  CHECK(cuMemcpyDtoH_v2(&back, memory, 4) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_METHOD(ContextFixture, "stream-ordered memory comes from pools and returns to the device") {
  size_t before = 0, after = 0, total = 0;
  REQUIRE_OK(cuMemGetInfo_v2(&before, &total));
  CUstream stream = nullptr;
  REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr memory = 0;
  REQUIRE_OK(cuMemAllocAsync(&memory, 8 << 20, stream));
  REQUIRE_OK(cuMemsetD8Async(memory, 1, 8 << 20, stream));
  CUmemoryPool pool = nullptr, found = nullptr;
  REQUIRE_OK(cuDeviceGetDefaultMemPool(&pool, device));
  REQUIRE_OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory));
  CHECK(found == pool);
  cuuint64_t used = 0;
  REQUIRE_OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  CHECK(used == 8u << 20);
  REQUIRE_OK(cuMemFreeAsync(memory, stream));
  CHECK(cuMemFreeAsync(memory, stream) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuStreamSynchronize(stream));
  REQUIRE_OK(cuMemGetInfo_v2(&after, &total));
  CHECK(after == before);

  // Allocates more than the device has in all, freed in stream order in between.
  for (int i = 0; i < 10; ++i) {
    REQUIRE_OK(cuMemAllocAsync(&memory, 100 << 20, stream));
    REQUIRE_OK(cuMemsetD8Async(memory, 1, 1 << 20, stream));
    REQUIRE_OK(cuMemFreeAsync(memory, stream));
  }
  REQUIRE_OK(cuStreamSynchronize(stream));

  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  REQUIRE_OK(cuMemPoolCreate(&pool, &properties));
  cuuint64_t threshold = UINT64_MAX;
  REQUIRE_OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  REQUIRE_OK(cuMemAllocFromPoolAsync(&memory, 4 << 20, pool, stream));
  REQUIRE_OK(cuMemFreeAsync(memory, stream));
  REQUIRE_OK(cuStreamSynchronize(stream));
  cuuint64_t reserved = 0;
  REQUIRE_OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
  CHECK(reserved == 4u << 20);
  threshold = 0;  // waiting for an event trims the pool as well
  CUevent event = nullptr;
  REQUIRE_OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  REQUIRE_OK(cuEventRecord(event, stream));
  REQUIRE_OK(cuEventSynchronize(event));
  REQUIRE_OK(cuEventDestroy_v2(event));
  REQUIRE_OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
  CHECK(reserved == 0);
  REQUIRE_OK(cuMemPoolDestroy(pool));
  CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuMemGetInfo_v2(&after, &total));
  CHECK(after == before);
  REQUIRE_OK(cuStreamDestroy_v2(stream));
}
