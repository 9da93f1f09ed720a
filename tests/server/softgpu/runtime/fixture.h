// What the tests of softgpu's driver share: a process whose devices are configured before cuInit, and a
// current context.
#pragma once
#include "protocol/cuda/cuda_header.h"
#include "tests/support/catch.h"

#define REQUIRE_OK(call) REQUIRE((call) == CUDA_SUCCESS)

// A created context on device 0, current on this thread while it lives.
struct ContextFixture {
  ContextFixture() {
    REQUIRE_OK(cuInit(0));
    REQUIRE_OK(cuDeviceGet(&device, 0));
    REQUIRE_OK(cuCtxCreate_v2(&context, 0, device));
  }
  ~ContextFixture() { cuCtxDestroy_v2(context); }
  CUdevice device = 0;
  CUcontext context = nullptr;
};
