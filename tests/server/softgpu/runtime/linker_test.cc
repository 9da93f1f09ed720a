// Tests the linker: PTX files, and object files and archives made by nvcc.
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/server/softgpu/runtime/fixture.h"
#include "tests/support/skip.h"

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
