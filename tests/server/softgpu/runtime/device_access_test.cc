// Tests a device's access to another device's memory.
#include <vector>

#include "tests/server/softgpu/runtime/fixture.h"
#include "tests/server/softgpu/runtime/kernels.h"

namespace {

constexpr size_t kAllocationGranule = 2 << 20;

// A context on each of two devices; the second is current.
struct TwoDevices : ContextFixture {
  TwoDevices() {
    REQUIRE_OK(cuCtxCreate_v2(&other, 0, 1));
    REQUIRE_OK(cuModuleLoadData(&module, kKernels));
    REQUIRE_OK(cuModuleGetFunction(&function, module, "fill"));
    REQUIRE_OK(cuMemAlloc_v2(&own, kAllocationGranule));
  }
  ~TwoDevices() { cuCtxDestroy_v2(other); }
  // Fills by a kernel on the second device.
  CUresult fill(CUdeviceptr at) {
    unsigned value = 3;
    void* parameters[] = {&at, &value};
    const CUresult launched = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
    return launched == CUDA_SUCCESS ? cuCtxSynchronize() : launched;
  }
  CUdeviceptr allocate_on_first() {
    CUdeviceptr memory = 0;
    REQUIRE_OK(cuCtxPushCurrent_v2(context));
    REQUIRE_OK(cuMemAlloc_v2(&memory, kAllocationGranule));
    REQUIRE_OK(cuCtxPopCurrent_v2(nullptr));
    return memory;
  }
  // Memory of the first device that only the first device may access.
  CUdeviceptr map_on_first() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle physical = 0;
    CUdeviceptr address = 0;
    REQUIRE_OK(cuMemCreate(&physical, kAllocationGranule, &properties, 0));
    REQUIRE_OK(cuMemAddressReserve(&address, kAllocationGranule, 0, 0, 0));
    REQUIRE_OK(cuMemMap(address, kAllocationGranule, 0, physical, 0));
    REQUIRE_OK(cuMemRelease(physical));
    set_access(address, 0);
    return address;
  }
  void set_access(CUdeviceptr address, int of_device,
                  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, of_device}, flags};
    REQUIRE_OK(cuMemSetAccess(address, kAllocationGranule, &access, 1));
  }
  CUcontext other = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr own = 0;
};

}  // namespace

TEST_CASE_METHOD(TwoDevices, "a copy needs its device's access to a mapping") {
  const CUdeviceptr memory = map_on_first();
  unsigned word = 5;
  const auto attempts = [&] {
    return std::vector<CUresult>{cuMemcpyHtoD_v2(memory, &word, 4), cuMemcpyDtoD_v2(memory, own, 4),
                                 cuMemsetD32_v2(memory, 1, 1), cuStreamWriteValue32_v2(nullptr, memory, 1, 0),
                                 cuMemcpyAsync(memory, own, 4, nullptr)};
  };
  const auto reads = [&] {
    return std::vector<CUresult>{cuMemcpyDtoH_v2(&word, memory, 4), cuMemcpyDtoD_v2(own, memory, 4)};
  };
  for (const CUresult result : attempts()) CHECK(result == CUDA_ERROR_INVALID_VALUE);
  for (const CUresult result : reads()) CHECK(result == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuCtxEnablePeerAccess(context, 0));  // does not apply to mappings
  for (const CUresult result : reads()) CHECK(result == CUDA_ERROR_INVALID_VALUE);
  set_access(memory, 1, CU_MEM_ACCESS_FLAGS_PROT_READ);
  for (const CUresult result : attempts()) CHECK(result == CUDA_ERROR_INVALID_VALUE);
  for (const CUresult result : reads()) CHECK(result == CUDA_SUCCESS);
  set_access(memory, 1);
  for (const CUresult result : attempts()) CHECK(result == CUDA_SUCCESS);
  REQUIRE_OK(cuCtxSynchronize());
}

TEST_CASE_METHOD(TwoDevices, "a copy between contexts uses the device of each") {
  const CUdeviceptr memory = map_on_first();
  CHECK(cuMemcpyPeer(own, other, memory, context, 4) == CUDA_SUCCESS);
  CHECK(cuMemcpyPeerAsync(memory, context, own, other, 4, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemcpyPeer(own, other, memory, other, 4) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuCtxSynchronize());
}

TEST_CASE_METHOD(TwoDevices, "a kernel needs its device's access to a mapping") {
  const CUdeviceptr memory = map_on_first();
  SECTION("and has it") {
    set_access(memory, 1);
    CHECK(fill(memory) == CUDA_SUCCESS);
  }
  SECTION("peers or not") {
    REQUIRE_OK(cuCtxEnablePeerAccess(context, 0));
    CHECK(fill(memory) == CUDA_ERROR_ILLEGAL_ADDRESS);
  }
}

TEST_CASE_METHOD(TwoDevices, "two numbers beside each other are not an address") {
  constexpr const char* kTakesTwoNumbers = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry takes(.param .u32 low, .param .u32 high) { ret; }
)";
  const CUdeviceptr memory = allocate_on_first();
  auto low = static_cast<unsigned>(memory), high = static_cast<unsigned>(memory >> 32);
  void* parameters[] = {&low, &high};
  CUmodule numbers = nullptr;
  CUfunction takes = nullptr;
  REQUIRE_OK(cuModuleLoadData(&numbers, kTakesTwoNumbers));
  REQUIRE_OK(cuModuleGetFunction(&takes, numbers, "takes"));
  REQUIRE_OK(cuLaunchKernel(takes, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE_METHOD(TwoDevices, "a kernel reaches another device's memory if its context is a peer") {
  const CUdeviceptr memory = allocate_on_first();
  CHECK(cuMemcpyDtoD_v2(own, memory, 4) == CUDA_SUCCESS);
  SECTION("once access is enabled") {
    REQUIRE_OK(cuCtxEnablePeerAccess(context, 0));
    CHECK(fill(memory + 64) == CUDA_SUCCESS);
    REQUIRE_OK(cuCtxDisablePeerAccess(context));
  }
  CHECK(fill(memory + 64) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE_METHOD(TwoDevices, "a kernel reaches a pool of another device with the pool's access") {
  CUmemoryPool pool = nullptr;
  REQUIRE_OK(cuDeviceGetDefaultMemPool(&pool, 0));
  CUdeviceptr memory = 0;
  REQUIRE_OK(cuCtxPushCurrent_v2(context));
  REQUIRE_OK(cuMemAllocAsync(&memory, 4096, nullptr));
  REQUIRE_OK(cuCtxPopCurrent_v2(nullptr));
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  REQUIRE_OK(cuMemPoolSetAccess(pool, &access, 1));
  CHECK(fill(memory) == CUDA_SUCCESS);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  REQUIRE_OK(cuMemPoolSetAccess(pool, &access, 1));
  CHECK(fill(memory) == CUDA_ERROR_ILLEGAL_ADDRESS);
  // The pool outlives the context, and other tests count the memory in it.
  REQUIRE_OK(cuCtxPushCurrent_v2(context));
  REQUIRE_OK(cuMemFreeAsync(memory, nullptr));
  REQUIRE_OK(cuCtxPopCurrent_v2(nullptr));
}
