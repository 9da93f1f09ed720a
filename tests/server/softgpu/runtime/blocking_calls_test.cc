// Tests calls that wait for the work of their context and meanwhile block other calls.
#include <cstdlib>

#include "tests/server/softgpu/runtime/kernels.h"
#include "tests/server/softgpu/runtime/queue_fixture.h"

namespace {

struct BlockingCallsFixture : QueueFixture {
  BlockingCallsFixture() { REQUIRE_OK(cuModuleLoadData(&module, kKernels)); }
  CUfunction function(const char* name) {
    CUfunction found = nullptr;
    REQUIRE_OK(cuModuleGetFunction(&found, module, name));
    return found;
  }
  CUresult launch(CUfunction kernel, CUstream stream) {
    CUdeviceptr out = memory;
    unsigned value = 1;
    void* parameters[] = {&out, &value};
    return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  }
  // Checks that the call waits for earlier work of its context and, if `locks`, holds the context's lock
  // meanwhile.
  void check_waits(const std::function<CUresult()>& call, bool locks) {
    std::atomic_ref(*word).store(0);
    park_first();
    {
      BlockedCall waits(context, call);
      CHECK(waits.blocks());
      if (locks) {
        BlockedCall other(context, [&] { return cuMemsetD32Async(memory, 1, 1, second); });
        CHECK(other.blocks());
        release();
        CHECK(other.result() == CUDA_SUCCESS);
      }
      release();
      CHECK(waits.result() == CUDA_SUCCESS);
    }
    REQUIRE_OK(cuCtxSynchronize());
  }
  void check_does_not_wait(const std::function<CUresult()>& call) {
    std::atomic_ref(*word).store(0);
    park_first();
    {
      BlockedCall passes(context, call);
      CHECK(!passes.blocks());
      release();
      CHECK(passes.result() == CUDA_SUCCESS);
    }
    REQUIRE_OK(cuCtxSynchronize());
  }
  CUmodule module = nullptr;
};

}  // namespace

TEST_CASE_METHOD(BlockingCallsFixture, "the first launch of a kernel waits for its context") {
  CUfunction fill = function("fill");
  check_waits([&] { return launch(fill, second); }, true);
  check_does_not_wait([&] { return launch(fill, second); });
}

TEST_CASE_METHOD(BlockingCallsFixture, "calls that need a loaded kernel load it") {
  int value = 0;
  CUfunction fill = function("fill"), count = function("count"), bounded = function("bounded");
  check_waits([&] { return cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, fill); }, true);
  check_waits(
      [&] { return cuFuncSetAttribute(count, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 10); },
      true);
  check_waits([&] { return cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, bounded, 32, 0); }, true);
  check_does_not_wait([&] { return launch(fill, second); });
  check_does_not_wait([&] { return cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, count); });
  CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_UNLOADED;
  REQUIRE_OK(cuFuncIsLoaded(&state, bounded));
  CHECK(state == CU_FUNCTION_LOADING_STATE_LOADED);
}

TEST_CASE_METHOD(BlockingCallsFixture,
                 "a kernel that needs more local memory than all before it waits for its context") {
  CUfunction deep = function("deep");
  REQUIRE_OK(cuFuncLoad(deep));
  check_waits([&] { return launch(deep, second); }, true);
  check_does_not_wait([&] { return launch(deep, second); });
}

TEST_CASE_METHOD(BlockingCallsFixture, "setting a limit waits for the context") {
  check_waits([] { return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048); }, true);
}

TEST_CASE_METHOD(BlockingCallsFixture, "freeing memory and unloading code wait for the context") {
  CUdeviceptr other = 0;
  REQUIRE_OK(cuMemAlloc_v2(&other, 4096));
  check_waits([&] { return cuMemFree_v2(other); }, false);
  void* pinned = nullptr;
  REQUIRE_OK(cuMemHostAlloc(&pinned, 4096, 0));
  check_waits([&] { return cuMemFreeHost(pinned); }, false);
  void* const page = std::aligned_alloc(4096, 4096);
  REQUIRE_OK(cuMemHostRegister_v2(page, 4096, 0));
  check_waits([&] { return cuMemHostUnregister(page); }, false);
  std::free(page);
  CUlibrary library = nullptr;
  CUmodule of_library = nullptr;
  REQUIRE_OK(cuLibraryLoadData(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  REQUIRE_OK(cuLibraryGetModule(&of_library, library));
  check_waits([&] { return cuLibraryUnload(library); }, false);
  check_waits([&] { return cuModuleUnload(module); }, false);
}
