// Loads code from files and runs it, and shares a managed variable of a library between host and device.
#include <cstring>

#include "tests/parity/show.h"

namespace parity {
namespace {

// A kernel and a managed variable.
const char kShared[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .attribute(.managed) .u32 total = 40;\n"
    ".visible .entry count(.param .u64 out) {\n"
    "  .reg .b32 %r<3>; .reg .b64 %d<2>;\n"
    "  ld.param.u64 %d1, [out];\n  ld.global.u32 %r1, [total];\n  add.u32 %r2, %r1, 2;\n"
    "  st.global.u32 [total], %r2;\n  st.global.u32 [%d1], %r2;\n  ret;\n}\n";

void run_fill(const char* what, CUmodule module) {
  CUfunction fill = nullptr;
  CUdeviceptr out = 0;
  unsigned seen[3] = {}, value = 9, count = 3;
  cuMemAlloc(&out, sizeof seen);
  void* parameters[] = {&out, &value, &count};
  SHOW(cuModuleGetFunction(&fill, module, "fill"));
  SHOW(launch(fill, 1, 32, 0, nullptr, parameters));
  SHOW(cuMemcpyDtoH(seen, out, sizeof seen));
  std::printf("%s: %u %u %u\n", what, seen[0], seen[1], seen[2]);
  cuMemFree(out);
}

void modules(const std::string& path) {
  CUmodule module = nullptr;
  SHOW(cuModuleLoad(&module, path.c_str()));
  run_fill("a module in a file", module);
  SHOW(cuModuleUnload(module));
  SHOW(cuModuleLoad(&module, "/no/such/file"));
  SHOW(cuModuleLoad(nullptr, path.c_str()));
  SHOW(cuModuleLoadFatBinary(&module, kernels_ptx));
  run_fill("a module by its image", module);
  SHOW(cuModuleUnload(module));
  SHOW(cuModuleLoadFatBinary(&module, nullptr));
}

void libraries(const std::string& path) {
  CUlibrary library = nullptr;
  CUmodule module = nullptr;
  SHOW(cuLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryGetModule(&module, library));
  run_fill("a library in a file", module);
  SHOW(cuLibraryUnload(library));
}

void linked(const std::string& path) {
  CUlinkState state = nullptr;
  CUmodule module = nullptr;
  void* image = nullptr;
  size_t size = 0;
  SHOW(cuLinkCreate(0, nullptr, nullptr, &state));
  SHOW(cuLinkAddFile(state, CU_JIT_INPUT_PTX, path.c_str(), 0, nullptr, nullptr));
  SHOW(cuLinkComplete(state, &image, &size));
  SHOW(cuModuleLoadData(&module, image));
  SHOW(cuLinkDestroy(state));
  run_fill("what was linked of a file", module);
  SHOW(cuModuleUnload(module));
}

void shared_variables() {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUdeviceptr total = 0, out = 0;
  size_t bytes = 0;
  unsigned seen = 0;
  SHOW(cuLibraryLoadData(&library, kShared, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW_VALUE(cuLibraryGetManaged(&total, &bytes, library, "total"), "%zu", bytes);
  SHOW(cuLibraryGetManaged(&total, &bytes, library, "nothing"));
  SHOW(cuLibraryGetKernel(&kernel, library, "count"));
  auto* const shared = reinterpret_cast<volatile unsigned*>(total);
  std::printf("at first: %u\n", *shared);
  *shared = 100;
  cuMemAlloc(&out, sizeof seen);
  void* parameters[] = {&out};
  SHOW(launch(reinterpret_cast<CUfunction>(kernel), 1, 1, 0, nullptr, parameters));
  SHOW(cuCtxSynchronize());
  SHOW(cuMemcpyDtoH(&seen, out, sizeof seen));
  std::printf("the kernel saw %u, the host %u\n", seen, *shared);
  cuMemFree(out);
  SHOW(cuLibraryUnload(library));
}

}  // namespace

void code_files() {
  const std::string path = temporary_file("kernels.ptx");
  std::ofstream(path) << kernels_ptx;
  modules(path);
  libraries(path);
  linked(path);
  std::remove(path.c_str());
  shared_variables();
}

}  // namespace parity
