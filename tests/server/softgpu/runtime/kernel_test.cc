#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/server/softgpu/runtime/fixture.h"
#include "tests/server/softgpu/runtime/kernels.h"

namespace {

struct KernelFixture : ContextFixture {
  KernelFixture() {
    REQUIRE_OK(cuModuleLoadData(&module, kKernels));
    REQUIRE_OK(cuMemAlloc_v2(&memory, 1 << 20));
    REQUIRE_OK(cuMemsetD8_v2(memory, 0, 1 << 20));
  }
  CUfunction function(const char* name) {
    CUfunction found = nullptr;
    REQUIRE_OK(cuModuleGetFunction(&found, module, name));
    return found;
  }
  CUresult launch(CUfunction f, unsigned grid, unsigned block, std::vector<void*> parameters,
                  CUstream stream = nullptr) {
    return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, stream, parameters.data(), nullptr);
  }
  CUmodule module = nullptr;
  CUdeviceptr memory = 0;
};

}  // namespace

TEST_CASE_METHOD(KernelFixture, "a launch takes parameters from kernelParams or extra") {
  CUfunction fill = function("fill");
  int value = 42;
  REQUIRE_OK(launch(fill, 4, 256, {&memory, &value}));
  CHECK(read_int(memory) == 42);
  CHECK(read_int(memory + 4 * 1023) == 42);
  CHECK(read_int(memory + 4 * 1024) == 0);

  struct __attribute__((packed)) {
    CUdeviceptr address;
    int value;
  } packed{memory, 43};
  size_t size = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  REQUIRE_OK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  CHECK(read_int(memory) == 43);
  size = 8;
  CHECK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra) == CUDA_ERROR_INVALID_VALUE);

  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY =
      config.blockDimZ = 1;
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  value = 44;
  void* parameters[] = {&memory, &value};
  REQUIRE_OK(cuLaunchKernelEx(&config, fill, parameters, nullptr));
  CHECK(read_int(memory) == 44);
}

TEST_CASE_METHOD(KernelFixture, "rejects invalid kernel launches") {
  CUfunction fill = function("fill");
  int value = 1;
  CHECK(launch(fill, 0, 1, {&memory, &value}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(launch(fill, 1, 0, {&memory, &value}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(launch(fill, 1, 1025, {&memory, &value}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(launch(fill, 1, 1, {&memory, nullptr}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  void* parameters[] = {&memory, &value};
  CHECK(cuLaunchKernel(fill, 1, 70000, 1, 1, 1, 1, 0, nullptr, parameters, nullptr) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 65, 0, nullptr, parameters, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 49 << 10, nullptr, parameters, nullptr) ==
        CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10));
  REQUIRE_OK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 49 << 10, nullptr, parameters, nullptr));
  CHECK(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 228 << 10) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(reinterpret_cast<CUfunction>(memory), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters,
                       nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(launch(function("bounded"), 1, 65, {}) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(launch(function("bounded"), 1, 64, {}));
  REQUIRE_OK(cuCtxSynchronize());
}

TEST_CASE_METHOD(KernelFixture, "a kernel's PTX version is its .target, its binary version the device's") {
  int major = 0, minor = 0;
  REQUIRE_OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  REQUIRE_OK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
  for (const int target : {50, 75}) {
    const std::string text = ".version 8.0\n.target sm_" + std::to_string(target) +
                             "\n.address_size 64\n.visible .entry k() { ret; }\n";
    CUmodule older = nullptr;
    CUfunction kernel = nullptr;
    REQUIRE_OK(cuModuleLoadData(&older, text.c_str()));
    REQUIRE_OK(cuModuleGetFunction(&kernel, older, "k"));
    int version = 0;
    REQUIRE_OK(cuFuncGetAttribute(&version, CU_FUNC_ATTRIBUTE_PTX_VERSION, kernel));
    CHECK(version == target);
    REQUIRE_OK(cuFuncGetAttribute(&version, CU_FUNC_ATTRIBUTE_BINARY_VERSION, kernel));
    CHECK(version == major * 10 + minor);
    REQUIRE_OK(cuModuleUnload(older));
  }
}

TEST_CASE_METHOD(
    KernelFixture,
    "a kernel's register count is its number of simultaneously live values within the limits of the PTX") {
  // 40 double sums over a loop need at least 80 registers.
  std::string sums, start, loop, end;
  for (int n = 0; n < 40; ++n) {
    const std::string reg = "%e" + std::to_string(n);
    start += "mov.f64 " + reg + ", 0d3FF0000000000000;\n";
    loop += "add.f64 " + reg + ", " + reg + ", %x;\n";
    end += "st.global.f64 [%p], " + reg + ";\n";
  }
  const auto registers = [&](const std::string& directives, const std::string& body, uintptr_t limit = 0) {
    const std::string text =
        ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 p, .param .u32 n) " +
        directives + " {\n.reg .b64 %p; .reg .f64 %x, %e<40>; .reg .b32 %n, %unused<500>; .reg .pred %q;\n" +
        body + "ret; }\n";
    CUmodule one = nullptr;
    CUfunction kernel = nullptr;
    CUjit_option option = CU_JIT_MAX_REGISTERS;
    void* most = reinterpret_cast<void*>(limit);
    REQUIRE_OK(cuModuleLoadDataEx(&one, text.c_str(), limit ? 1 : 0, &option, &most));
    REQUIRE_OK(cuModuleGetFunction(&kernel, one, "k"));
    int value = 0;
    REQUIRE_OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel));
    int blocks = 0;
    REQUIRE_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 64, 0));
    CHECK(blocks > 0);
    REQUIRE_OK(cuModuleUnload(one));
    return value;
  };
  const std::string many = "ld.param.u64 %p, [p]; ld.param.u32 %n, [n]; mov.f64 %x, 0d3FF0000000000000;\n" +
                           start + "L:\n" + loop + "sub.u32 %n, %n, 1; setp.ne.u32 %q, %n, 0; @%q bra L;\n" +
                           end;
  CHECK(registers("", many) > 80);
  CHECK(registers("", many) <= 255);
  CHECK(registers(".maxnreg 57", many) == 57);
  CHECK(registers("", many, 38) == 38);
  CHECK(registers(".maxnreg 30", many, 38) == 30);
  CHECK(registers(".maxntid 1024, 1, 1", many) == 64);
  CHECK(registers("", "") < 16);
}

TEST_CASE_METHOD(KernelFixture, "a kernel's constant memory size counts what it and its callees use") {
  const char* const text =
      ".version 8.0\n.target sm_75\n.address_size 64\n.const .align 4 .b32 a[25];\n.const .align 8 .b64 "
      "b[3];\n.const .b8 unused[999];\n"
      ".func f(.param .b32 x) { .reg .b32 %r; ld.const.u32 %r, [a]; ret; }\n"
      ".visible .entry both() { .reg .b64 %d; ld.const.u64 %d, [b]; { .param .b32 x; st.param.b32 [x], 1; "
      "call f, (x); } ret; }\n"
      ".visible .entry none() { ret; }\n";
  CUmodule constants = nullptr;
  REQUIRE_OK(cuModuleLoadData(&constants, text));
  const auto bytes = [&](const char* name) {
    CUfunction kernel = nullptr;
    int value = -1;
    REQUIRE_OK(cuModuleGetFunction(&kernel, constants, name));
    REQUIRE_OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, kernel));
    return value;
  };
  CHECK(bytes("both") == 104 + 24);
  CHECK(bytes("none") == 0);
  REQUIRE_OK(cuModuleUnload(constants));
}

TEST_CASE_METHOD(KernelFixture, "globals, functions and their attributes") {
  CUdeviceptr counter = 0;
  size_t size = 0;
  REQUIRE_OK(cuModuleGetGlobal_v2(&counter, &size, module, "counter"));
  CHECK(size == 4);
  CHECK(read_int(counter) == 7);
  REQUIRE_OK(launch(function("count"), 2, 32, {}));
  CHECK(read_int(counter) == 7 + 64);
  CHECK(cuModuleGetGlobal_v2(&counter, &size, module, "nothing") == CUDA_ERROR_NOT_FOUND);
  CUfunction missing = nullptr;
  CHECK(cuModuleGetFunction(&missing, module, "nothing") == CUDA_ERROR_NOT_FOUND);

  CUfunction fill = function("fill");
  const char* name = nullptr;
  REQUIRE_OK(cuFuncGetName(&name, fill));
  CHECK(std::string(name) == "fill");
  size_t offset = 0;
  REQUIRE_OK(cuFuncGetParamInfo(fill, 1, &offset, &size));
  CHECK(offset == 8);
  CHECK(size == 4);
  CHECK(cuFuncGetParamInfo(fill, 2, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
  int value = 0;
  REQUIRE_OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function("bounded")));
  CHECK(value == 64);
  int blocks = 0;
  REQUIRE_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fill, 1024, 0));
  CHECK(blocks == 2);
  int grid = 0, block = 0;
  REQUIRE_OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, fill, nullptr, 0, 0));
  CHECK(block == 1024);
  CHECK(grid > 0);
  unsigned count = 0;
  REQUIRE_OK(cuModuleGetFunctionCount(&count, module));
  std::vector<CUfunction> all(count);
  REQUIRE_OK(cuModuleEnumerateFunctions(all.data(), count, module));
  CHECK(std::find(all.begin(), all.end(), fill) != all.end());
  CUmodule owner = nullptr;
  REQUIRE_OK(cuFuncGetModule(&owner, fill));
  CHECK(owner == module);

  REQUIRE_OK(cuModuleUnload(module));
  CHECK(cuModuleUnload(module) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(launch(fill, 1, 1, {&memory, &value}) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemcpyDtoH_v2(&value, counter, 4) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_METHOD(KernelFixture, "a fault is sticky in its context only") {
  struct Case {
    const char* kernel;
    CUresult error;
  };
  for (const Case& c :
       {Case{"stray", CUDA_ERROR_ILLEGAL_ADDRESS}, Case{"misaligned", CUDA_ERROR_MISALIGNED_ADDRESS},
        Case{"trapped", CUDA_ERROR_LAUNCH_FAILED}}) {
    INFO(c.kernel);
    CUcontext other = nullptr;
    REQUIRE_OK(cuCtxCreate_v2(&other, 0, device));
    CUmodule broken = nullptr;
    REQUIRE_OK(cuModuleLoadData(&broken, kKernels));
    CUdeviceptr there = 0;
    REQUIRE_OK(cuMemAlloc_v2(&there, 4096));
    CUfunction f = nullptr;
    REQUIRE_OK(cuModuleGetFunction(&f, broken, c.kernel));
    REQUIRE_OK(launch(f, 1, 32, {&there}));
    CHECK(cuCtxSynchronize() == c.error);
    CHECK(cuMemFree_v2(there) == c.error);
    CHECK(cuStreamQuery(nullptr) == c.error);
    CHECK(launch(f, 1, 32, {&there}) == c.error);
    CHECK(cuModuleUnload(broken) == c.error);
    REQUIRE_OK(cuCtxPopCurrent_v2(nullptr));
    int value = 5;
    REQUIRE_OK(launch(function("fill"), 1, 32, {&memory, &value}));
    CHECK(read_int(memory) == 5);
    REQUIRE_OK(cuCtxDestroy_v2(other));
  }
}

TEST_CASE_METHOD(KernelFixture, "kernels and copies of a stream run in order") {
  CUstream stream = nullptr;
  REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUfunction count = function("count");
  CUdeviceptr counter = 0;
  REQUIRE_OK(cuModuleGetGlobal_v2(&counter, nullptr, module, "counter"));
  REQUIRE_OK(cuMemsetD32Async(counter, 0, 1, stream));
  for (int i = 0; i < 2000; ++i) REQUIRE_OK(launch(count, 1, 32, {}, stream));
  int value = 0;
  REQUIRE_OK(cuMemcpyDtoHAsync_v2(&value, counter, 4, stream));
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK(value == 64'000);
}
