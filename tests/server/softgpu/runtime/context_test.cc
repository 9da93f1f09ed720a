#include <atomic>
#include <thread>
#include <vector>

#include "tests/server/softgpu/runtime/fixture.h"
#include "tests/server/softgpu/runtime/kernels.h"

TEST_CASE_METHOD(ContextFixture, "each thread has a stack of contexts") {
  CUcontext current = nullptr;
  REQUIRE_OK(cuCtxGetCurrent(&current));
  CHECK(current == context);
  CUcontext second = nullptr;
  REQUIRE_OK(cuCtxCreate_v2(&second, 0, 1));
  CUdevice device = -1;
  REQUIRE_OK(cuCtxGetDevice(&device));
  CHECK(device == 1);
  REQUIRE_OK(cuCtxPopCurrent_v2(&current));
  CHECK(current == second);
  REQUIRE_OK(cuCtxGetDevice(&device));
  CHECK(device == 0);
  std::thread([&] {
    CUcontext mine = context;
    CHECK(cuCtxGetCurrent(&mine) == CUDA_SUCCESS);
    CHECK(mine == nullptr);
    CHECK(cuCtxGetDevice(&device) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuCtxSetCurrent(second) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  }).join();
  REQUIRE_OK(cuCtxDestroy_v2(second));
  CHECK(cuCtxDestroy_v2(second) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxSetCurrent(second) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE_METHOD(ContextFixture, "using a context that another thread destroyed returns an error") {
  CUcontext other = nullptr;
  REQUIRE_OK(cuCtxCreate_v2(&other, 0, 0));
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  REQUIRE_OK(cuMemAlloc_v2(&memory, 1 << 20));
  REQUIRE_OK(cuStreamCreate(&stream, 0));
  REQUIRE_OK(cuEventCreate(&event, 0));
  std::thread([&] { CHECK(cuCtxDestroy_v2(other) == CUDA_SUCCESS); }).join();
  CHECK(cuMemAlloc_v2(&memory, 16) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  REQUIRE_OK(cuCtxPopCurrent_v2(nullptr));
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventSynchronize(event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the primary context keeps its handle across reset") {
  REQUIRE_OK(cuInit(0));
  CUcontext first = nullptr, second = nullptr;
  unsigned flags = 0;
  int active = -1;
  REQUIRE_OK(cuDevicePrimaryCtxSetFlags_v2(1, CU_CTX_SCHED_BLOCKING_SYNC));
  REQUIRE_OK(cuDevicePrimaryCtxRetain(&first, 1));
  REQUIRE_OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
  CHECK(active == 1);
  CHECK(flags == CU_CTX_SCHED_BLOCKING_SYNC);
  REQUIRE_OK(cuCtxSetCurrent(first));
  size_t before = 0, during = 0, after = 0, total = 0;
  REQUIRE_OK(cuMemGetInfo_v2(&before, &total));
  CUdeviceptr memory = 0;
  REQUIRE_OK(cuMemAlloc_v2(&memory, 32 << 20));
  REQUIRE_OK(cuMemGetInfo_v2(&during, &total));
  CHECK(before - during == 32u << 20);
  REQUIRE_OK(cuDevicePrimaryCtxReset_v2(1));
  REQUIRE_OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
  CHECK(active == 0);
  CHECK(cuMemGetInfo_v2(&during, &total) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  REQUIRE_OK(cuDevicePrimaryCtxRetain(&second, 1));
  CHECK(first == second);
  REQUIRE_OK(cuMemGetInfo_v2(&after, &total));
  CHECK(after == before);
  REQUIRE_OK(cuDevicePrimaryCtxRelease_v2(1));
  REQUIRE_OK(cuDevicePrimaryCtxRelease_v2(1));
  CHECK(cuDevicePrimaryCtxRelease_v2(1) == CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE_OK(cuCtxSetCurrent(nullptr));
  REQUIRE_OK(cuDevicePrimaryCtxSetFlags_v2(1, 0));
}

TEST_CASE_METHOD(ContextFixture, "limits, settings and peers") {
  size_t value = 0;
  REQUIRE_OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
  CHECK(value == 1024);
  REQUIRE_OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 4 << 20));
  REQUIRE_OK(cuCtxGetLimit(&value, CU_LIMIT_PRINTF_FIFO_SIZE));
  CHECK(value == 4u << 20);
  CHECK(cuCtxGetLimit(&value, static_cast<CUlimit>(1000)) == CUDA_ERROR_UNSUPPORTED_LIMIT);
  int least = 1, greatest = 1;
  REQUIRE_OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  CHECK(least == 0);
  CHECK(greatest < 0);
  CUcontext peer = nullptr;
  REQUIRE_OK(cuCtxCreate_v2(&peer, 0, 1));
  CUdeviceptr there = 0;
  REQUIRE_OK(cuMemAlloc_v2(&there, 4096));
  REQUIRE_OK(cuCtxPopCurrent_v2(nullptr));
  REQUIRE_OK(cuCtxEnablePeerAccess(peer, 0));
  CHECK(cuCtxEnablePeerAccess(peer, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  CUdeviceptr here = 0;
  REQUIRE_OK(cuMemAlloc_v2(&here, 4096));
  REQUIRE_OK(cuMemsetD8_v2(here, 0x5a, 4096));
  REQUIRE_OK(cuMemcpyPeer(there, peer, here, context, 4096));
  REQUIRE_OK(cuCtxSynchronize());
  unsigned char byte = 0;
  REQUIRE_OK(cuMemcpyDtoH_v2(&byte, there + 4095, 1));
  CHECK(byte == 0x5a);
  REQUIRE_OK(cuCtxDisablePeerAccess(peer));
  CHECK(cuCtxDisablePeerAccess(peer) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  REQUIRE_OK(cuCtxDestroy_v2(peer));
}

TEST_CASE_METHOD(ContextFixture, "cuMemcpyPeer waits for streams that do not block") {
  CUcontext peer = nullptr;
  REQUIRE_OK(cuCtxCreate_v2(&peer, 0, 1));
  CUdeviceptr there = 0, here = 0;
  REQUIRE_OK(cuMemAlloc_v2(&there, 4096));
  REQUIRE_OK(cuCtxPopCurrent_v2(nullptr));
  REQUIRE_OK(cuMemAlloc_v2(&here, 4096));
  CUstream stream = nullptr;
  REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  REQUIRE_OK(cuMemsetD8_v2(here, 0x11, 4096));
  std::atomic<bool> copying = false;
  const auto wait_until_copying = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
    for (int look = 0; look < 20'000; ++look)
      std::this_thread::yield();  // a copy that does not wait would be done by now
  };
  REQUIRE_OK(cuLaunchHostFunc(stream, wait_until_copying, &copying));
  REQUIRE_OK(cuMemsetD8Async(here, 0x5a, 4096, stream));
  copying = true;
  REQUIRE_OK(cuMemcpyPeer(there, peer, here, context, 4096));
  unsigned char byte = 0;
  REQUIRE_OK(cuMemcpyDtoH_v2(&byte, there + 4095, 1));
  CHECK(byte == 0x5a);
  REQUIRE_OK(cuCtxDestroy_v2(peer));
}

namespace {

size_t free_memory() {
  size_t free = 0, total = 0;
  REQUIRE_OK(cuMemGetInfo_v2(&free, &total));
  return free;
}

}  // namespace

TEST_CASE_METHOD(ContextFixture, "a context reserves device memory until it is destroyed") {
  const size_t before = free_memory();
  CUcontext another = nullptr;
  REQUIRE_OK(cuCtxCreate_v2(&another, 0, device));
  const size_t taken = before - free_memory();
  CHECK(taken >= (256u << 20) / 160);
  CHECK(taken < (256u << 20) / 160 + 8192);
  REQUIRE_OK(cuCtxDestroy_v2(another));
  CHECK(free_memory() == before);
}

TEST_CASE_METHOD(ContextFixture, "creating a context fails without memory for it") {
  std::vector<CUdeviceptr> all;
  for (size_t size = 64 << 20; size >= 2 << 20; size /= 2) {
    for (CUdeviceptr memory = 0; cuMemAlloc_v2(&memory, size) == CUDA_SUCCESS;) all.push_back(memory);
  }
  CUcontext another = nullptr;
  std::vector<CUcontext> more;
  CUresult result = CUDA_SUCCESS;
  while (more.size() < 4 && (result = cuCtxCreate_v2(&another, 0, device)) == CUDA_SUCCESS)
    more.push_back(another);
  CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
  for (const CUcontext made : more) REQUIRE_OK(cuCtxDestroy_v2(made));
  for (const CUdeviceptr memory : all) REQUIRE_OK(cuMemFree_v2(memory));
}

TEST_CASE_METHOD(ContextFixture, "local memory of kernels is charged to the device") {
  CUmodule module = nullptr;
  CUfunction deep = nullptr;
  CUdeviceptr out = 0;
  REQUIRE_OK(cuMemAlloc_v2(&out, 4));
  REQUIRE_OK(cuModuleLoadData(&module, kKernels));
  REQUIRE_OK(cuModuleGetFunction(&deep, module, "deep"));
  void* parameters[] = {&out};
  const size_t before = free_memory();
  REQUIRE_OK(cuLaunchKernel(deep, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  const size_t with = free_memory();
  CHECK(before - with >= 6u << 20);  // 8 KiB for each of 132 x 2,048 threads, times 256 MiB / 80 GiB
  REQUIRE_OK(cuLaunchKernel(deep, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  CHECK(free_memory() == with);
}

TEST_CASE_METHOD(ContextFixture, "raising a limit reserves device memory") {
  CUcontext another = nullptr;
  const size_t before = free_memory();
  REQUIRE_OK(cuCtxCreate_v2(&another, 0, device));
  const size_t with = free_memory();
  REQUIRE_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8192));
  const size_t with_stack = free_memory();
  CHECK(with - with_stack >= 6u << 20);  // as a kernel's
  REQUIRE_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
  CHECK(free_memory() == with_stack);
  REQUIRE_OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 5 << 20));
  CHECK(free_memory() <= with_stack - (4u << 20));
  REQUIRE_OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20));
  CHECK(free_memory() == with_stack);
  CHECK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, size_t{1} << 40) == CUDA_ERROR_OUT_OF_MEMORY);
  size_t printf_bytes = 0;
  REQUIRE_OK(cuCtxGetLimit(&printf_bytes, CU_LIMIT_PRINTF_FIFO_SIZE));
  CHECK(printf_bytes == 1 << 20);
  REQUIRE_OK(cuCtxDestroy_v2(another));
  CHECK(free_memory() == before);
}
