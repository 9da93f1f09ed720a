// Common parts of the tests of softgpu's driver: a process whose devices are configured before cuInit
// (main.cc), and a current context.
#pragma once
#include "protocol/driver/cuda_header.h"
#include "tests/support/catch.h"

#define REQUIRE_OK(call) REQUIRE((call) == CUDA_SUCCESS)

// A context on device 0 that is current on this thread during the test.
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

// Reads an int from device memory.
inline int read_int(CUdeviceptr address) {
  int value = -1;
  REQUIRE_OK(cuMemcpyDtoH_v2(&value, address, 4));
  return value;
}
