// Lists of the functions of modules and libraries, and linking at run time.
#include <cstring>
#include <initializer_list>

#include "tests/parity/show.h"

namespace parity {
namespace {

// kCaller calls a function of kCallee.
const char kCaller[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .func (.param .b32 r) twice(.param .b32 x);\n"
    ".global .align 4 .u32 input = 21;\n"
    ".visible .entry run(.param .u64 out) {\n"
    "  .reg .b32 %r<3>; .reg .b64 %d<2>;\n"
    "  ld.param.u64 %d1, [out];\n  ld.global.u32 %r1, [input];\n"
    "  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), twice, (a); ld.param.b32 %r2, "
    "[b]; }\n"
    "  st.global.u32 [%d1], %r2;\n  ret;\n}\n";
const char kCallee[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .func (.param .b32 r) twice(.param .b32 x) {\n"
    "  .reg .b32 %r<3>;\n  ld.param.b32 %r1, [x];\n  add.u32 %r2, %r1, %r1;\n  st.param.b32 [r], %r2;\n  "
    "ret;\n}\n";

CUresult add(CUlinkState state, const char* text) {
  return cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(text), std::strlen(text) + 1, "input", 0,
                       nullptr, nullptr);
}

void run(const char* what, const void* image) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr out = 0, input = 0;
  unsigned result = 0;
  size_t size = 0;
  std::printf("%s\n", what);
  if (SHOW(cuModuleLoadData(&module, image)) != CUDA_SUCCESS) return;
  SHOW(cuModuleGetFunction(&function, module, "run"));
  SHOW_VALUE(cuModuleGetGlobal(&input, &size, module, "input"), "%zu", size);
  SHOW(cuMemAlloc(&out, 4));
  void* parameters[] = {&out};
  SHOW(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  SHOW_VALUE(cuMemcpyDtoH(&result, out, 4), "%u", result);
  SHOW(cuMemFree(out));
  SHOW(cuModuleUnload(module));
}

void linker() {
  CUlinkState state = nullptr, second = nullptr;
  void* image = nullptr;
  size_t size = 0;
  char errors[4096] = {}, information[4096] = {};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_INFO_LOG_BUFFER,  CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_MAX_REGISTERS,    CU_JIT_LOG_VERBOSE};
  void* values[] = {errors,
                    reinterpret_cast<void*>(sizeof errors),
                    information,
                    reinterpret_cast<void*>(sizeof information),
                    reinterpret_cast<void*>(32),
                    reinterpret_cast<void*>(1)};
  SHOW(cuLinkCreate(0, nullptr, nullptr, nullptr));
  SHOW(cuLinkCreate(1, nullptr, nullptr, &state));
  SHOW(cuLinkCreate(1u << 30, options, values, &state));
  SHOW(cuLinkCreate(6, options, values, &state));
  SHOW(cuLinkAddData(nullptr, CU_JIT_INPUT_PTX, const_cast<char*>(kCaller), sizeof kCaller, "caller", 0,
                     nullptr, nullptr));
  SHOW(cuLinkAddData(wild<CUlinkState>(), CU_JIT_INPUT_PTX, const_cast<char*>(kCaller), sizeof kCaller,
                     "caller", 0, nullptr, nullptr));
  SHOW(cuLinkAddData(state, CU_JIT_INPUT_PTX, nullptr, 10, "caller", 0, nullptr, nullptr));
  SHOW(cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(kCaller), 0, "caller", 0, nullptr, nullptr));
  SHOW(cuLinkAddData(state, CU_JIT_INPUT_FATBINARY, const_cast<char*>("garbage"), 8, nullptr, 0, nullptr,
                     nullptr));
  SHOW(cuLinkAddFile(state, CU_JIT_INPUT_PTX, "/no/such/file", 0, nullptr, nullptr));
  SHOW(cuLinkAddFile(state, CU_JIT_INPUT_PTX, nullptr, 0, nullptr, nullptr));
  for (const CUjitInputType type :
       {CU_JIT_INPUT_PTX, CU_JIT_INPUT_CUBIN, CU_JIT_INPUT_FATBINARY, CU_JIT_INPUT_OBJECT}) {
    REQUIRE(CUDA_ERROR_INVALID_VALUE, cuLinkAddFile(state, type, "/dev/null", 0, nullptr, nullptr));
  }
  REQUIRE(CUDA_ERROR_INVALID_VALUE, add(state, ""));
  SHOW(cuLinkComplete(state, &image, &size));
  SHOW(add(state, kCaller));
  SHOW_VALUE(cuLinkComplete(state, &image, &size), "%d", size > 0);  // twice() is missing
  SHOW(add(state, kCallee));
  SHOW(cuLinkComplete(state, nullptr, &size));
  SHOW(cuLinkComplete(nullptr, &image, &size));
  if (SHOW(cuLinkComplete(state, &image, &size)) == CUDA_SUCCESS) {
    std::printf("an ELF file: %d\n", size > 4 && std::memcmp(image, "\177ELF", 4) == 0);
    run("what was linked", image);
    // The linker's output is also valid as input.
    SHOW(cuLinkCreate(0, nullptr, nullptr, &second));
    SHOW(cuLinkAddData(second, CU_JIT_INPUT_CUBIN, image, size, "linked", 0, nullptr, nullptr));
    if (SHOW(cuLinkComplete(second, &image, nullptr)) == CUDA_SUCCESS) run("what was linked twice", image);
    SHOW(cuLinkDestroy(second));
  }
  SHOW(cuLinkDestroy(state));
  SHOW(cuLinkDestroy(state));
  SHOW(cuLinkDestroy(nullptr));
  SHOW(cuLinkDestroy(wild<CUlinkState>()));
  SHOW(cuLinkComplete(state, &image, &size));

  SHOW(cuLinkCreate(6, options, values, &state));
  SHOW(
      add(state,
          ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { nonsense.u32 %r1; ret; }\n"));
  SHOW(cuLinkComplete(state, &image, &size));
  std::printf("said why: %d\n", errors[0] != '\0');
  SHOW(cuLinkDestroy(state));

  // A linker ends with its context.
  CUcontext before = nullptr, context = nullptr;
  SHOW(cuCtxGetCurrent(&before));
#if CUDA_VERSION >= 13000
  SHOW(cuCtxCreate(&context, nullptr, 0, 0));
#else
  SHOW(cuCtxCreate(&context, 0, 0));
#endif
  SHOW(cuLinkCreate(0, nullptr, nullptr, &state));
  SHOW(add(state, kCallee));
  SHOW(cuCtxDestroy(context));
  SHOW(cuCtxSetCurrent(before));
  SHOW(cuCtxSynchronize());
}

#if CUDA_VERSION >= 12040
void lists() {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUfunction functions[64] = {};
  CUkernel kernels[64] = {};
  unsigned count = 0;
  const char* name = nullptr;
  SHOW(cuModuleLoadData(&module, kernels_ptx));
  SHOW(cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuModuleGetFunctionCount(nullptr, module));
  SHOW(cuModuleGetFunctionCount(&count, nullptr));
  SHOW(cuModuleGetFunctionCount(&count, wild<CUmodule>()));
  SHOW_VALUE(cuModuleGetFunctionCount(&count, module), "%u", count);
  SHOW(cuModuleEnumerateFunctions(nullptr, 1, module));
  SHOW(cuModuleEnumerateFunctions(functions, 0, module));
  SHOW(cuModuleEnumerateFunctions(functions, 64, wild<CUmodule>()));
  SHOW_VALUE(cuModuleEnumerateFunctions(functions, 2, module), "%d",
             functions[1] != nullptr && functions[2] == nullptr);
  if (SHOW(cuModuleEnumerateFunctions(functions, 64, module)) == CUDA_SUCCESS) {
    for (unsigned i = 0; i < count && i < 64; ++i) SHOW_VALUE(cuFuncGetName(&name, functions[i]), "%s", name);
  }
  // NVIDIA's libraries list functions with the eighth entry of an export table
  // (protocol/driver/export_tables.cc).
  const CUuuid tools_module{{0x6e, 0x16, 0x3f, static_cast<char>(0xbe), static_cast<char>(0xb9), 0x58, 0x44,
                             0x4d, static_cast<char>(0x83), 0x5c, static_cast<char>(0xe1),
                             static_cast<char>(0x82), static_cast<char>(0xaf), static_cast<char>(0xf1),
                             static_cast<char>(0x99), 0x1e}};
  const void* table = nullptr;
  if (SHOW(cuGetExportTable(&table, &tools_module)) == CUDA_SUCCESS) {
    using Visit = void (*)(void*, CUfunction, uint64_t);
    const auto list =
        reinterpret_cast<int (*)(CUcontext, CUmodule, Visit, void*)>(static_cast<void* const*>(table)[7]);
    const Visit visit = [](void* count, CUfunction function, uint64_t) {
      ++*static_cast<unsigned*>(count);
      const char* its_name = nullptr;
      SHOW_VALUE(cuFuncGetName(&its_name, function), "%s", its_name);
    };
    unsigned visited = 0;
    const int listed = list(nullptr, module, visit, &visited);
    std::printf("%d listed, %u visited; of no module %d, without a visitor %d\n", listed, visited,
                list(nullptr, wild<CUmodule>(), visit, &visited), list(nullptr, module, nullptr, nullptr));
  }
  CUfunction fill = nullptr;
  SHOW_VALUE(cuModuleGetFunction(&fill, module, "fill"), "%d", [&] {
    int found = 0;
    for (const CUfunction function : functions) found += function == fill;
    return found;
  }());
  SHOW(cuLibraryGetKernelCount(nullptr, library));
  SHOW(cuLibraryGetKernelCount(&count, nullptr));
  SHOW(cuLibraryGetKernelCount(&count, wild<CUlibrary>()));
  SHOW_VALUE(cuLibraryGetKernelCount(&count, library), "%u", count);
  SHOW(cuLibraryEnumerateKernels(nullptr, 1, library));
  SHOW(cuLibraryEnumerateKernels(kernels, 0, library));
  SHOW(cuLibraryEnumerateKernels(kernels, 64, nullptr));
  if (SHOW(cuLibraryEnumerateKernels(kernels, 64, library)) == CUDA_SUCCESS) {
    for (unsigned i = 0; i < count && i < 64; ++i) SHOW_VALUE(cuKernelGetName(&name, kernels[i]), "%s", name);
  }
#if CUDA_VERSION >= 12050
  CUlibrary of = nullptr;
  SHOW_VALUE(cuKernelGetLibrary(&of, kernels[0]), "%d", of == library);
  SHOW(cuKernelGetLibrary(nullptr, kernels[0]));
  SHOW(cuKernelGetLibrary(&of, nullptr));
  SHOW(cuKernelGetLibrary(&of, wild<CUkernel>()));
#endif
  CUmodule stands_for = nullptr;
  SHOW(cuLibraryGetModule(&stands_for, library));
  SHOW_VALUE(cuModuleGetFunctionCount(&count, stands_for), "%u", count);
  SHOW(cuLibraryUnload(library));
  SHOW(cuModuleUnload(module));
  SHOW(cuModuleGetFunctionCount(&count, module));
}
#endif

}  // namespace

void linking() {
  linker();
#if CUDA_VERSION >= 12040
  lists();
#endif
}

}  // namespace parity
