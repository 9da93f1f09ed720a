// Tests modules and libraries: a library in several contexts, images without usable code, and attributes of
// kernels and of their functions.
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/server/softgpu/runtime/fixture.h"
#include "tests/server/softgpu/runtime/kernels.h"

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
