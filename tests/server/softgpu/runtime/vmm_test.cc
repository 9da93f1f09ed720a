#include "tests/server/softgpu/runtime/fixture.h"

namespace {
constexpr size_t kGranule = 2 << 20;
CUmemAllocationProp properties() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return prop;
}
const CUmemAccessDesc kReadWrite{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}  // namespace

TEST_CASE_METHOD(ContextFixture, "maps one allocation at two chosen addresses") {
  const CUmemAllocationProp prop = properties();
  size_t granularity = 0;
  REQUIRE_OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CHECK(granularity == kGranule);
  CUdeviceptr first = 0, second = 0, chosen = 0;
  REQUIRE_OK(cuMemAddressReserve(&first, 8 * kGranule, 0, 0, 0));
  REQUIRE_OK(cuMemAddressFree(first, 8 * kGranule));
  REQUIRE_OK(cuMemAddressReserve(&chosen, 4 * kGranule, 0, first + 2 * kGranule, 0));
  CHECK(chosen == first + 2 * kGranule);
  REQUIRE_OK(cuMemAddressReserve(&second, 4 * kGranule, 0, 0, 0));

  CUmemGenericAllocationHandle memory = 0;
  REQUIRE_OK(cuMemCreate(&memory, 2 * kGranule, &prop, 0));
  CHECK(cuMemCreate(&memory, 1000, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuMemMap(chosen, 2 * kGranule, 0, memory, 0));
  CHECK(cuMemMap(chosen, kGranule, 0, memory, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemMap(chosen + 3 * kGranule, 2 * kGranule, 0, memory, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD8_v2(chosen, 1, 16) == CUDA_ERROR_INVALID_VALUE);  // no access yet
  REQUIRE_OK(cuMemSetAccess(chosen, 2 * kGranule, &kReadWrite, 1));
  REQUIRE_OK(cuMemMap(second, kGranule, kGranule, memory, 0));
  REQUIRE_OK(cuMemSetAccess(second, kGranule, &kReadWrite, 1));
  REQUIRE_OK(cuMemsetD32_v2(chosen + kGranule, 77, 1));
  int value = 0;
  REQUIRE_OK(cuMemcpyDtoH_v2(&value, second, 4));
  CHECK(value == 77);

  CUmemGenericAllocationHandle again = 0;
  REQUIRE_OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(second)));
  CHECK(again == memory);
  CUmemAllocationProp back{};
  REQUIRE_OK(cuMemGetAllocationPropertiesFromHandle(&back, again));
  CHECK(back.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
  REQUIRE_OK(cuMemRelease(memory));
  REQUIRE_OK(cuMemRelease(memory));
  CHECK(cuMemRelease(memory) == CUDA_ERROR_INVALID_VALUE);

  CHECK(cuMemAddressFree(chosen, 4 * kGranule) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuMemUnmap(chosen, 2 * kGranule));
  CHECK(cuMemUnmap(chosen, 2 * kGranule) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoH_v2(&value, chosen, 4) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuMemcpyDtoH_v2(&value, second, 4));
  REQUIRE_OK(cuMemUnmap(second, kGranule));
  REQUIRE_OK(cuMemAddressFree(chosen, 4 * kGranule));
  REQUIRE_OK(cuMemAddressFree(second, 4 * kGranule));
}

TEST_CASE_METHOD(ContextFixture, "physical memory is charged until its last mapping is removed") {
  const CUmemAllocationProp prop = properties();
  size_t before = 0, now = 0, total = 0;
  REQUIRE_OK(cuMemGetInfo_v2(&before, &total));
  CUmemGenericAllocationHandle memory = 0, more = 0;
  REQUIRE_OK(cuMemCreate(&memory, 200 << 20, &prop, 0));
  CHECK(cuMemCreate(&more, 100 << 20, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr address = 0;
  REQUIRE_OK(cuMemAddressReserve(&address, 200 << 20, 0, 0, 0));
  REQUIRE_OK(cuMemMap(address, 200 << 20, 0, memory, 0));
  REQUIRE_OK(cuMemRelease(memory));
  REQUIRE_OK(cuMemGetInfo_v2(&now, &total));
  CHECK(before - now == 200u << 20);
  REQUIRE_OK(cuMemUnmap(address, 200 << 20));
  REQUIRE_OK(cuMemGetInfo_v2(&now, &total));
  CHECK(now == before);
  REQUIRE_OK(cuMemAddressFree(address, 200 << 20));
}

TEST_CASE_METHOD(ContextFixture, "a copy spans adjacent mappings") {
  const CUmemAllocationProp prop = properties();
  CUdeviceptr address = 0;
  REQUIRE_OK(cuMemAddressReserve(&address, 2 * kGranule, 0, 0, 0));
  CUmemGenericAllocationHandle memory[2];
  for (int i = 0; i < 2; ++i) {
    REQUIRE_OK(cuMemCreate(&memory[i], kGranule, &prop, 0));
    REQUIRE_OK(cuMemMap(address + static_cast<size_t>(i) * kGranule, kGranule, 0, memory[i], 0));
    REQUIRE_OK(cuMemRelease(memory[i]));
  }
  REQUIRE_OK(cuMemSetAccess(address, 2 * kGranule, &kReadWrite, 1));
  REQUIRE_OK(cuMemsetD8_v2(address, 3, 2 * kGranule));
  REQUIRE_OK(cuMemcpyDtoD_v2(address + kGranule - 8, address, 16));
  CHECK(cuMemsetD8_v2(address, 3, 2 * kGranule + 1) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuMemUnmap(address, 2 * kGranule));
  REQUIRE_OK(cuMemAddressFree(address, 2 * kGranule));
}

TEST_CASE_METHOD(ContextFixture, "the CPU gets no access to device memory") {
  const CUmemAllocationProp prop = properties();
  CUmemGenericAllocationHandle memory = 0;
  CUdeviceptr address = 0;
  REQUIRE_OK(cuMemCreate(&memory, kGranule, &prop, 0));
  REQUIRE_OK(cuMemAddressReserve(&address, kGranule, 0, 0, 0));
  REQUIRE_OK(cuMemMap(address, kGranule, 0, memory, 0));
  const CUmemAccessDesc both[] = {kReadWrite,
                                  {{static_cast<CUmemLocationType>(2) /* CU_MEM_LOCATION_TYPE_HOST */, 0},
                                   CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  CHECK(cuMemSetAccess(address, kGranule, both, 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD8_v2(address, 1, 16) == CUDA_ERROR_INVALID_VALUE);  // nothing was set
  CHECK(cuMemSetAccess(address, kGranule, both, 1) == CUDA_SUCCESS);
  int direct = -1;
  REQUIRE_OK(cuDeviceGetAttribute(&direct, CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, device));
  CHECK(direct == 0);
}

TEST_CASE_METHOD(ContextFixture, "cuIpcGetMemHandle rejects memory of mappings and pools") {
  const CUmemAllocationProp prop = properties();
  CUmemGenericAllocationHandle memory = 0;
  CUdeviceptr mapped = 0, pooled = 0, plain = 0;
  REQUIRE_OK(cuMemCreate(&memory, kGranule, &prop, 0));
  REQUIRE_OK(cuMemAddressReserve(&mapped, kGranule, 0, 0, 0));
  REQUIRE_OK(cuMemMap(mapped, kGranule, 0, memory, 0));
  REQUIRE_OK(cuMemSetAccess(mapped, kGranule, &kReadWrite, 1));
  REQUIRE_OK(cuMemAllocAsync(&pooled, kGranule, nullptr));
  REQUIRE_OK(cuMemAlloc_v2(&plain, kGranule));
  CUipcMemHandle handle{};
  CHECK(cuIpcGetMemHandle(&handle, mapped) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcGetMemHandle(&handle, pooled) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcGetMemHandle(&handle, plain) == CUDA_SUCCESS);
}
