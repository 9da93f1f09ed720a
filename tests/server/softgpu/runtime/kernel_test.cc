#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/server/softgpu/runtime/fixture.h"
#include "tests/server/softgpu/runtime/kernels.h"
#include "tests/support/skip.h"

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

int read_int(CUdeviceptr address) {
  int value = -1;
  REQUIRE_OK(cuMemcpyDtoH_v2(&value, address, 4));
  return value;
}

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

TEST_CASE("a library is usable in every context and survives their reset") {
  REQUIRE_OK(cuInit(0));
  CUlibrary library = nullptr;
  REQUIRE_OK(cuLibraryLoadData(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  REQUIRE_OK(cuLibraryGetKernel(&kernel, library, "count"));
  CHECK(cuLibraryGetKernel(&kernel, library, "nothing") == CUDA_ERROR_NOT_FOUND);
  const char* name = nullptr;
  REQUIRE_OK(cuKernelGetName(&name, kernel));
  CHECK(std::string(name) == "count");
  for (int round = 0; round < 2; ++round) {
    for (CUdevice device = 0; device < 2; ++device) {
      CUcontext context = nullptr;
      REQUIRE_OK(cuDevicePrimaryCtxRetain(&context, device));
      REQUIRE_OK(cuCtxSetCurrent(context));
      REQUIRE_OK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr,
                                nullptr));
      CUdeviceptr counter = 0;
      size_t size = 0;
      REQUIRE_OK(cuLibraryGetGlobal(&counter, &size, library, "counter"));
      CHECK(read_int(counter) == 7 + 32);  // this context's own instance, new after the reset
      CUfunction f = nullptr;
      REQUIRE_OK(cuKernelGetFunction(&f, kernel));
      REQUIRE_OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
      CHECK(read_int(counter) == 7 + 64);
      REQUIRE_OK(cuDevicePrimaryCtxReset_v2(device));
      REQUIRE_OK(cuDevicePrimaryCtxRelease_v2(device));
    }
  }
  REQUIRE_OK(cuCtxSetCurrent(nullptr));
  REQUIRE_OK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 << 10, kernel, 1));
  int bytes = 0;
  REQUIRE_OK(cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 1));
  CHECK(bytes == 64 << 10);
  REQUIRE_OK(cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0));
  CHECK(bytes == 48 << 10);
  REQUIRE_OK(cuLibraryUnload(library));
  CHECK(cuLibraryUnload(library) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuKernelGetName(&name, kernel) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE_METHOD(ContextFixture,
                 "loads a fat binary without code for the device and rejects each use of it") {
  // A container with one entry: PTX for compute capability 12.0.
  const std::string text = ".version 8.7\n.target sm_120\n.address_size 64\n.visible .entry add() { ret; }\n";
  struct {
    uint32_t magic = 0xBA55ED50;
    uint16_t version = 1, header_bytes = 16;
    uint64_t bytes = 0;
    uint16_t kind = 1, entry_version = 0x101;
    uint32_t entry_header_bytes = 64;
    uint64_t payload_bytes = 128;
    uint32_t compressed_bytes = 0, options_offset = 0;
    uint16_t minor = 7, major = 8;
    uint32_t arch = 120, name_offset = 0, name_bytes = 0;
    uint64_t flags = 0x11, unused = 0, uncompressed_bytes = 0;
    char payload[128] = {};
  } image;
  REQUIRE(text.size() < sizeof image.payload);
  std::memcpy(image.payload, text.data(), text.size());
  image.bytes = sizeof image - 16;

  const std::string why =
      "the image holds no machine code and PTX for compute_120; the device, of compute capability ";
  char log[512] = "";
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CUlibrary library = nullptr;
  REQUIRE_OK(cuLibraryLoadData(&library, &image, options, values, 2, nullptr, nullptr, 0));
  CHECK(std::string(log).starts_with(why));
  CUkernel kernel = nullptr;
  CUmodule module = nullptr;
  CUdeviceptr address = 0;
  size_t size = 0;
  unsigned count = 0;
  for (int again = 0; again < 2; ++again) {
    CHECK(cuLibraryGetKernel(&kernel, library, "add") == CUDA_ERROR_NO_BINARY_FOR_GPU);
    CHECK(cuLibraryGetModule(&module, library) == CUDA_ERROR_NO_BINARY_FOR_GPU);
    CHECK(cuLibraryGetGlobal(&address, &size, library, "counter") == CUDA_ERROR_NO_BINARY_FOR_GPU);
    CHECK(cuLibraryGetManaged(&address, &size, library, "counter") == CUDA_ERROR_NO_BINARY_FOR_GPU);
    CHECK(cuLibraryGetKernelCount(&count, library) == CUDA_ERROR_NO_BINARY_FOR_GPU);
    CHECK(cuLibraryEnumerateKernels(&kernel, 1, library) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  }
  REQUIRE_OK(cuLibraryUnload(library));
  CHECK(cuLibraryGetKernel(&kernel, library, "add") == CUDA_ERROR_INVALID_HANDLE);
  // Modules are loaded for the current device, so loading fails.
  options[0] = CU_JIT_ERROR_LOG_BUFFER;
  options[1] = CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
  values[1] = reinterpret_cast<void*>(sizeof log);
  log[0] = '\0';
  CHECK(cuModuleLoadDataEx(&module, &image, 2, options, values) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(std::string(log).starts_with(why));
}

TEST_CASE_METHOD(ContextFixture, "function attributes override later kernel attributes") {
  constexpr auto kShared = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  REQUIRE_OK(cuLibraryLoadData(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  REQUIRE_OK(cuLibraryGetKernel(&kernel, library, "count"));
  REQUIRE_OK(cuKernelGetFunction(&function, kernel));
  const auto launches = [&](CUfunction f, unsigned shared) {
    return cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, shared, nullptr, nullptr, nullptr) == CUDA_SUCCESS;
  };
  int value = 0;
  REQUIRE_OK(cuKernelSetAttribute(kShared, 60 << 10, kernel, 0));
  REQUIRE_OK(cuFuncGetAttribute(&value, kShared, function));
  CHECK(value == 60 << 10);  // the kernel's value applies if the function has none
  for (const auto set : {function, reinterpret_cast<CUfunction>(kernel)}) {
    const int wanted = set == function ? 70 << 10 : 80 << 10;
    REQUIRE_OK(cuFuncSetAttribute(set, kShared, wanted));
    REQUIRE_OK(cuKernelSetAttribute(kShared, 50 << 10, kernel, 0));
    REQUIRE_OK(cuFuncGetAttribute(&value, kShared, function));
    CHECK(value == wanted);
    REQUIRE_OK(cuKernelGetAttribute(&value, kShared, kernel, 0));
    CHECK(value == 50 << 10);
    for (const auto launched : {function, reinterpret_cast<CUfunction>(kernel)}) {
      CHECK(launches(launched, static_cast<unsigned>(wanted)));
      CHECK_FALSE(launches(launched, static_cast<unsigned>(wanted) + 1));
    }
  }
  // Attributes are independent of each other, and another device's function does not change.
  REQUIRE_OK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 30, kernel, 0));
  REQUIRE_OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, function));
  CHECK(value == 30);
  REQUIRE_OK(cuKernelGetAttribute(&value, kShared, kernel, 1));
  CHECK(value == 48 << 10);
  REQUIRE_OK(cuCtxSynchronize());
  REQUIRE_OK(cuLibraryUnload(library));
}

TEST_CASE_METHOD(ContextFixture, "loading an unusable image reports the reason") {
  CUmodule module = nullptr;
  char log[512] = "untouched";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  const char* broken =
      ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() {\n  frobnicate.u32 %r1;\n  "
      "ret;\n}\n";
  CHECK(cuModuleLoadDataEx(&module, broken, 2, options, values) == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(log).find("frobnicate") != std::string::npos);
  CHECK(reinterpret_cast<uintptr_t>(values[1]) == std::strlen(log));
  const char* future = ".version 7.0\n.target sm_150\n.address_size 64\n.visible .entry k() { ret; }\n";
  CHECK(cuModuleLoadData(&module, future) == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  CHECK(cuModuleLoadData(&module, "garbage") == CUDA_ERROR_INVALID_IMAGE);
  CHECK(cuModuleLoadData(&module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuModuleLoad(&module, "/nonexistent/file.ptx") == CUDA_ERROR_FILE_NOT_FOUND);
}

namespace {

const char* const kCaller =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .func (.param .b32 r) twice(.param .b32 x);\n"
    ".visible .entry run(.param .u64 out) {\n"
    "  .reg .b32 %r<3>; .reg .b64 %d<2>;\n"
    "  ld.param.u64 %d1, [out];\n"
    "  mov.u32 %r1, 21;\n"
    "  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), twice, (a); ld.param.b32 %r2, "
    "[b]; }\n"
    "  st.global.u32 [%d1], %r2;\n  ret;\n}\n";

// Links kCaller with the library that defines the missing function and runs it.
int run_with(CUjitInputType type, const void* library, size_t bytes) {
  CUlinkState state = nullptr;
  REQUIRE_OK(cuLinkCreate_v2(0, nullptr, nullptr, &state));
  REQUIRE_OK(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, const_cast<char*>(kCaller), std::strlen(kCaller) + 1,
                              "caller", 0, nullptr, nullptr));
  REQUIRE_OK(
      cuLinkAddData_v2(state, type, const_cast<void*>(library), bytes, "library", 0, nullptr, nullptr));
  void* image = nullptr;
  size_t size = 0;
  REQUIRE_OK(cuLinkComplete(state, &image, &size));
  CUmodule module = nullptr;
  REQUIRE_OK(cuModuleLoadData(&module, image));
  REQUIRE_OK(cuLinkDestroy(state));
  CHECK(cuLinkDestroy(state) == CUDA_ERROR_INVALID_HANDLE);
  CUfunction run = nullptr;
  REQUIRE_OK(cuModuleGetFunction(&run, module, "run"));
  CUdeviceptr out = 0;
  REQUIRE_OK(cuMemAlloc_v2(&out, 4));
  void* parameters[] = {&out};
  REQUIRE_OK(cuLaunchKernel(run, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  return read_int(out);
}

}  // namespace

TEST_CASE_METHOD(ContextFixture, "the linker joins PTX files") {
  const char* callee =
      ".version 7.0\n.target sm_70\n.address_size 64\n"
      ".visible .func (.param .b32 r) twice(.param .b32 x) {\n"
      "  .reg .b32 %r<3>;\n  ld.param.b32 %r1, [x];\n  add.u32 %r2, %r1, %r1;\n  st.param.b32 [r], %r2;\n  "
      "ret;\n}\n";
  CHECK(run_with(CU_JIT_INPUT_PTX, callee, std::strlen(callee) + 1) == 42);
}

#ifdef LINKED_FOLDER
// Files made by nvcc.
std::string linked_file(const std::string& name) {
  std::ifstream file(LINKED_FOLDER "/" + name, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}
CUresult add_to_link(CUlinkState state, std::string data, CUjitInputType type) {
  return cuLinkAddData_v2(state, type, data.data(), data.size(), "data", 0, nullptr, nullptr);
}

TEST_CASE_METHOD(ContextFixture, "the linker takes object files and archives") {
  const std::string object = linked_file("twice.o"), archive = linked_file("libtwice.a");
  CHECK(run_with(CU_JIT_INPUT_OBJECT, object.data(), object.size()) == 42);
  CHECK(run_with(CU_JIT_INPUT_LIBRARY, archive.data(), archive.size()) == 42);
  CUlinkState state = nullptr;
  REQUIRE_OK(cuLinkCreate_v2(0, nullptr, nullptr, &state));
  CHECK(add_to_link(state, "garbage", CU_JIT_INPUT_LIBRARY) == CUDA_ERROR_INVALID_IMAGE);
  for (size_t length = 8; length < archive.size(); length += 97) {
    add_to_link(state, archive.substr(0, length), CU_JIT_INPUT_LIBRARY);  // must not crash
  }
  CHECK(cuLinkDestroy(state) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(ContextFixture,
                 "the linker's register limit applies to the linked image when it is loaded") {
  std::string text =
      ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 p) {\n.reg .b64 %p; .reg "
      ".f64 %e<40>;\nld.param.u64 %p, [p];\n";
  for (int n = 0; n < 40; ++n) text += "ld.global.f64 %e" + std::to_string(n) + ", [%p];\n";
  for (int n = 0; n < 40; ++n) text += "st.global.f64 [%p], %e" + std::to_string(n) + ";\n";
  text += "ret; }\n";
  CUjit_option option = CU_JIT_MAX_REGISTERS;
  void* most = reinterpret_cast<void*>(40);
  for (const unsigned options : {0u, 1u}) {
    CUlinkState state = nullptr;
    REQUIRE_OK(cuLinkCreate_v2(options, &option, &most, &state));
    REQUIRE_OK(add_to_link(state, text, CU_JIT_INPUT_PTX));
    void* image = nullptr;
    REQUIRE_OK(cuLinkComplete(state, &image, nullptr));
    CUmodule linked = nullptr;
    REQUIRE_OK(cuModuleLoadData(&linked, image));
    REQUIRE_OK(cuLinkDestroy(state));
    CUfunction kernel = nullptr;
    REQUIRE_OK(cuModuleGetFunction(&kernel, linked, "k"));
    int registers = 0;
    REQUIRE_OK(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel));
    CHECK((options ? registers == 40 : registers > 80));
    REQUIRE_OK(cuModuleUnload(linked));
  }
}

TEST_CASE_METHOD(ContextFixture, "linking against an archive without code for this device fails") {
  const std::string newer = linked_file("libnewer.a");
  if (newer.empty())
    return gpupool::testing::report_skip(
        "the toolkit knows no architecture that is newer than the test's device");
  CUlinkState state = nullptr;
  REQUIRE_OK(cuLinkCreate_v2(0, nullptr, nullptr, &state));
  CHECK(add_to_link(state, newer, CU_JIT_INPUT_LIBRARY) == CUDA_SUCCESS);
  CHECK(add_to_link(state, kCaller, CU_JIT_INPUT_PTX) == CUDA_SUCCESS);
  void* image = nullptr;
  CHECK(cuLinkComplete(state, &image, nullptr) == CUDA_ERROR_INVALID_IMAGE);  // twice() is missing
  CHECK(cuLinkDestroy(state) == CUDA_SUCCESS);
}
#endif
