// Tests that softgpu with SOFTGPU_RULES=none permits what the rules forbid.
#include <stdlib.h>

#include <atomic>

#include "tests/server/softgpu/runtime/fixture.h"
#include "tests/server/softgpu/runtime/kernels.h"

namespace {

[[maybe_unused]] const int no_rules = setenv("SOFTGPU_RULES", "none", 1);  // before cuInit

}  // namespace

TEST_CASE_METHOD(ContextFixture,
                 "an unbounded queue accepts a long chain of operations without deep recursion") {
  void* word = nullptr;
  REQUIRE_OK(cuMemHostAlloc(&word, 4096, 0));
  *static_cast<uint32_t*>(word) = 0;
  CUdeviceptr memory = 0;
  REQUIRE_OK(cuMemAlloc_v2(&memory, 4096));
  CUstream stream = nullptr;
  REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  REQUIRE_OK(cuStreamWaitValue32_v2(stream, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_EQ));
  for (int i = 0; i < 100'000; ++i) REQUIRE_OK(cuMemsetD32Async(memory, static_cast<unsigned>(i), 1, stream));
  std::atomic_ref(*static_cast<uint32_t*>(word)).store(1);
  REQUIRE_OK(cuStreamSynchronize(stream));
  int value = 0;
  REQUIRE_OK(cuMemcpyDtoH_v2(&value, memory, 4));
  CHECK(value == 99'999);
}

TEST_CASE_METHOD(ContextFixture, "streams that share a queue do not block each other") {
  void* word = nullptr;
  REQUIRE_OK(cuMemHostAlloc(&word, 4096, 0));
  *static_cast<uint32_t*>(word) = 0;
  CUstream first = nullptr, other = nullptr;
  REQUIRE_OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  REQUIRE_OK(cuStreamWaitValue32_v2(first, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_EQ));
  for (int i = 0; i < 40; ++i) {
    REQUIRE_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    REQUIRE_OK(cuStreamWriteValue32_v2(other, reinterpret_cast<CUdeviceptr>(word) + 4, 1, 0));
    CHECK(cuStreamQuery(other) == CUDA_SUCCESS);
  }
  REQUIRE_OK(cuStreamWriteValue32_v2(other, reinterpret_cast<CUdeviceptr>(word), 1, 0));
  REQUIRE_OK(cuStreamSynchronize(first));
}

TEST_CASE_METHOD(ContextFixture, "host functions may call CUDA") {
  CUresult result = CUDA_ERROR_UNKNOWN;
  REQUIRE_OK(cuLaunchHostFunc(
      nullptr, [](void* to) { *static_cast<CUresult*>(to) = cuCtxSetCurrent(nullptr); }, &result));
  REQUIRE_OK(cuCtxSynchronize());
  CHECK(result == CUDA_SUCCESS);
}

TEST_CASE_METHOD(ContextFixture, "loading kernels and setting limits do not wait for running work") {
  void* word = nullptr;
  REQUIRE_OK(cuMemHostAlloc(&word, 4096, 0));
  *static_cast<uint32_t*>(word) = 0;
  CUstream parked = nullptr, other = nullptr;
  CUmodule module = nullptr;
  CUfunction deep = nullptr;
  CUdeviceptr out = reinterpret_cast<CUdeviceptr>(word) + 8;
  void* parameters[] = {&out};
  REQUIRE_OK(cuStreamCreate(&parked, CU_STREAM_NON_BLOCKING));
  REQUIRE_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  REQUIRE_OK(cuModuleLoadData(&module, kKernels));
  REQUIRE_OK(cuModuleGetFunction(&deep, module, "deep"));
  REQUIRE_OK(cuStreamWaitValue32_v2(parked, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_EQ));
  REQUIRE_OK(cuLaunchKernel(deep, 1, 1, 1, 1, 1, 1, 0, other, parameters, nullptr));
  REQUIRE_OK(cuStreamSynchronize(other));
  REQUIRE_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
  CHECK(cuStreamQuery(parked) == CUDA_ERROR_NOT_READY);
  std::atomic_ref(*static_cast<uint32_t*>(word)).store(1);
  REQUIRE_OK(cuStreamSynchronize(parked));
}

TEST_CASE_METHOD(ContextFixture, "the CPU can have access to device memory") {
  int direct = -1;
  REQUIRE_OK(cuDeviceGetAttribute(&direct, CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, device));
  CHECK(direct == 1);
}
