// Modules, libraries and launches.
#include <string>

#include "tests/parity/show.h"

namespace parity {

namespace {

void launches(CUfunction fill, CUfunction nothing) {
  CUdeviceptr out = 0;
  unsigned value = 1, count = 100;
  cuMemAlloc(&out, 4096);
  void* parameters[] = {&out, &value, &count};
  SHOW(launch(fill, 1, 128, 0, nullptr, parameters));
  SHOW(launch(nullptr, 1, 1, 0, nullptr, parameters));
  SHOW(launch(wild<CUfunction>(), 1, 1, 0, nullptr, parameters));
  SHOW(launch(reinterpret_cast<CUfunction>(out), 1, 1, 0, nullptr, parameters));
  SHOW(launch(fill, 1, 1, 0, wild<CUstream>(), parameters));
  SHOW(launch(fill, 0, 1, 0, nullptr, parameters));
  SHOW(launch(fill, 1, 0, 0, nullptr, parameters));
  SHOW(launch(fill, 1, 1025, 0, nullptr, parameters));
  SHOW(launch(fill, 0xffffffff, 1, 0, nullptr, parameters));
  SHOW(cuLaunchKernel(fill, 1, 70000, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  SHOW(cuLaunchKernel(fill, 1, 1, 70000, 1, 1, 1, 0, nullptr, parameters, nullptr));
  SHOW(cuLaunchKernel(fill, 1, 0, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  SHOW(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 65, 0, nullptr, parameters, nullptr));
  SHOW(cuLaunchKernel(fill, 1, 1, 1, 64, 64, 1, 0, nullptr, parameters, nullptr));
  SHOW(launch(fill, 1, 1, 48 * 1024, nullptr, parameters));
  SHOW(launch(fill, 1, 1, 48 * 1024 + 1, nullptr, parameters));
  SHOW(launch(fill, 1, 1, 0xffffffff, nullptr, parameters));
  SHOW(launch(fill, 1, 1, 0, nullptr, nullptr));
  SHOW(launch(nothing, 1, 1, 0, nullptr, nullptr));
  struct {
    CUdeviceptr out;
    unsigned value, count;
  } packed{out, 5, 10};
  size_t size = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  SHOW(launch(fill, 1, 128, 0, nullptr, nullptr, extra));
  SHOW(launch(fill, 1, 128, 0, nullptr, parameters, extra));
  size = sizeof packed - 1;  // cuts the last parameter
  SHOW(launch(fill, 1, 128, 0, nullptr, nullptr, extra));
  size = 4;
  LATE(launch(fill, 1, 128, 0, nullptr, nullptr, extra));
  void* unknown[] = {wild<void*>(77), &packed, CU_LAUNCH_PARAM_END};
  SHOW(launch(fill, 1, 128, 0, nullptr, nullptr, unknown));
  SHOW(cuLaunchCooperativeKernel(fill, 1, 1, 1, 128, 1, 1, 0, nullptr, parameters));
  SHOW(cuLaunchCooperativeKernel(fill, 1000000, 1, 1, 128, 1, 1, 0, nullptr, parameters));
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY =
      config.blockDimZ = 1;
  SHOW(cuLaunchKernelEx(&config, fill, parameters, nullptr));
  SHOW(cuLaunchKernelEx(nullptr, fill, parameters, nullptr));
  config.numAttrs = 1;
  SHOW(cuLaunchKernelEx(&config, fill, parameters, nullptr));
  CUlaunchAttribute attribute{};
  config.attrs = &attribute;
  attribute.id = CU_LAUNCH_ATTRIBUTE_IGNORE;
  SHOW(cuLaunchKernelEx(&config, fill, parameters, nullptr));
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  SHOW(cuLaunchKernelEx(&config, fill, parameters, nullptr));
  attribute.id = static_cast<CUlaunchAttributeID>(999);
  SHOW(cuLaunchKernelEx(&config, fill, parameters, nullptr));
  SHOW(cuCtxSynchronize());
  cuMemFree(out);
}

}  // namespace

void modules() {
  CUmodule module = nullptr, second = nullptr;
  CUfunction fill = nullptr, nothing = nullptr, function = nullptr;
  CUdeviceptr address = 0;
  size_t size = 0, offset = 0;
  int number = 0, other = 0;
  const char* name = nullptr;
  SHOW(cuModuleLoadData(nullptr, kernels_ptx));
  SHOW(cuModuleLoadData(&module, nullptr));
  SHOW(cuModuleLoadData(&module, "garbage"));
  SHOW(cuModuleLoadData(&module, ""));
  // The driver takes an image's size from its headers, so the headers must be readable.
  char elf[4096] =
      "\x7f"
      "ELF and nothing more";
  SHOW(cuModuleLoadData(&module, elf));
  SHOW(cuModuleLoad(&module, "/no/such/file"));
  SHOW(cuModuleLoad(&module, nullptr));
  SHOW(cuModuleLoad(nullptr, "/no/such/file"));
  SHOW(cuModuleLoadFatBinary(&module, nullptr));
  SHOW(cuModuleLoadDataEx(&module, kernels_ptx, 1, nullptr, nullptr));
  SHOW(cuModuleLoadData(&module, kernels_ptx));
  SHOW(cuModuleLoadDataEx(&second, kernels_ptx, 0, nullptr, nullptr));
  SHOW(cuModuleGetFunction(nullptr, module, "fill"));
  SHOW(cuModuleGetFunction(&fill, nullptr, "fill"));
  SHOW(cuModuleGetFunction(&fill, wild<CUmodule>(), "fill"));
  SHOW(cuModuleGetFunction(&fill, module, nullptr));
  SHOW(cuModuleGetFunction(&fill, module, ""));
  SHOW(cuModuleGetFunction(&fill, module, "absent"));
  SHOW(cuModuleGetFunction(&fill, module, "counter"));
  SHOW(cuModuleGetFunction(&fill, module, std::string(10'000, 'x').c_str()));
  SHOW(cuModuleGetFunction(&fill, module, "fill"));
  SHOW(cuModuleGetFunction(&nothing, module, "nothing"));
  SHOW_VALUE(cuModuleGetFunction(&function, module, "fill"), "%d", function == fill);
  SHOW_VALUE(cuModuleGetFunction(&function, second, "fill"), "%d", function == fill);
  SHOW_VALUE(cuModuleGetGlobal(&address, &size, module, "counter"), "%zu", size);
  SHOW_VALUE(cuModuleGetGlobal(nullptr, &size, module, "table"), "%zu", size);
  SHOW(cuModuleGetGlobal(&address, nullptr, module, "table"));
  SHOW(cuModuleGetGlobal(nullptr, nullptr, module, "table"));
  SHOW(cuModuleGetGlobal(&address, &size, module, "fill"));
  SHOW(cuModuleGetGlobal(&address, &size, module, "absent"));
  SHOW(cuModuleGetGlobal(&address, &size, module, nullptr));
  SHOW(cuModuleGetGlobal(&address, &size, nullptr, "table"));
  SHOW(cuModuleGetGlobal(&address, &size, wild<CUmodule>(), "table"));
  SHOW_UNLESS_GUARDED(cuMemFree(address));  // NVIDIA's driver frees a module's variable
  SHOW(cuMemsetD8(address, 0, size));
  SHOW(cuMemsetD8(address, 0, size + 1000));
  CUmoduleLoadingMode mode{};
  SHOW_VALUE(cuModuleGetLoadingMode(&mode), "%d", mode);
  SHOW(cuModuleGetLoadingMode(nullptr));
  for (int attribute = -1; attribute < 20; ++attribute) {
    number = -1;
    const CUresult result = cuFuncGetAttribute(&number, static_cast<CUfunction_attribute>(attribute), fill);
    std::printf("function attribute %d -> %s %d\n", attribute, name_of(result), number);
  }
  SHOW(cuFuncGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, fill));
  SHOW(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr));
  SHOW(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, wild<CUfunction>()));
  SHOW(cuFuncSetAttribute(nothing, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60'000));
  SHOW_VALUE(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, nothing), "%d",
             number);
  SHOW(launch(nothing, 1, 1, 60'000, nullptr, nullptr));
  SHOW(launch(nothing, 1, 1, 60'001, nullptr, nullptr));
  SHOW(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 10'000'000));
  SHOW(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1));
  SHOW(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_NUM_REGS, 5));
  SHOW(cuFuncSetAttribute(fill, static_cast<CUfunction_attribute>(99), 5));
  SHOW(cuFuncSetAttribute(nullptr, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 5));
  SHOW(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  SHOW(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101));
  SHOW(cuFuncSetCacheConfig(fill, CU_FUNC_CACHE_PREFER_L1));
  LATE(cuFuncSetCacheConfig(fill, static_cast<CUfunc_cache>(9)));
  SHOW(cuFuncSetCacheConfig(nullptr, CU_FUNC_CACHE_PREFER_L1));
  SHOW_VALUE(cuFuncGetName(&name, fill), "%s", name);
  SHOW(cuFuncGetName(nullptr, fill));
  SHOW(cuFuncGetName(&name, wild<CUfunction>()));
  for (size_t index = 0; index < 4; ++index) {
    const CUresult result = cuFuncGetParamInfo(fill, index, &offset, &size);
    std::printf("parameter %zu -> %s %zu %zu\n", index, name_of(result), result ? 0 : offset,
                result ? 0 : size);
  }
  SHOW(cuFuncGetParamInfo(fill, 0, nullptr, &size));
  SHOW(cuFuncGetParamInfo(fill, 0, &offset, nullptr));
  CUfunctionLoadingState state{};
  SHOW_VALUE(cuFuncIsLoaded(&state, fill), "%d", state);
  SHOW(cuFuncIsLoaded(nullptr, fill));
  SHOW(cuFuncLoad(fill));
  SHOW(cuFuncLoad(nullptr));
  CUmodule of = nullptr;
  SHOW_VALUE(cuFuncGetModule(&of, fill), "%d", of == module);
  SHOW(cuFuncGetModule(nullptr, fill));
  SHOW(cuFuncGetModule(&of, wild<CUfunction>()));
  SHOW_VALUE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, fill, 128, 0), "%d", number);
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, fill, 0, 0));
  SHOW_VALUE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, fill, 5000, 0), "%d", number);
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, fill, 128, 0));
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, nullptr, 128, 0));
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&number, fill, 128, 0, 99));
  SHOW_VALUE(cuOccupancyMaxPotentialBlockSize(&number, &other, fill, nullptr, 0, 0), "%d %d", number, other);
  SHOW_VALUE(cuOccupancyMaxPotentialBlockSize(&number, &other, fill, nullptr, 0, 100), "%d %d", number,
             other);
  SHOW(cuOccupancyMaxPotentialBlockSize(nullptr, &other, fill, nullptr, 0, 0));
  SHOW(cuOccupancyMaxPotentialBlockSize(&number, &other, wild<CUfunction>(), nullptr, 0, 0));
  SHOW_VALUE(cuOccupancyAvailableDynamicSMemPerBlock(&size, fill, 2, 128), "%zu", size);
  SHOW(cuOccupancyAvailableDynamicSMemPerBlock(nullptr, fill, 2, 128));
  SHOW(cuOccupancyAvailableDynamicSMemPerBlock(&size, fill, 0, 128));
  launches(fill, nothing);
  SHOW(cuModuleUnload(nullptr));
  SHOW(cuModuleUnload(wild<CUmodule>()));
  SHOW(cuModuleUnload(module));
  SHOW(cuModuleUnload(module));
  SHOW(cuModuleGetFunction(&function, module, "fill"));
  SHOW(launch(nothing, 1, 1, 0, nullptr, nullptr));
  SHOW(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, nothing));
  SHOW(cuModuleUnload(second));
  SHOW(cuCtxSynchronize());
}

void libraries() {
#if CUDA_VERSION >= 12000
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr address = 0;
  size_t size = 0, offset = 0;
  int number = 0;
  const char* name = nullptr;
  SHOW(cuLibraryLoadData(nullptr, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, "garbage", nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 1, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 1));
  SHOW(cuLibraryLoadFromFile(&library, "/no/such/file", nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryGetKernel(nullptr, library, "nothing"));
  SHOW(cuLibraryGetKernel(&kernel, nullptr, "nothing"));
  SHOW(cuLibraryGetKernel(&kernel, wild<CUlibrary>(), "nothing"));
  SHOW(cuLibraryGetKernel(&kernel, library, nullptr));
  SHOW(cuLibraryGetKernel(&kernel, library, "absent"));
  SHOW(cuLibraryGetKernel(&kernel, library, "fill"));
  SHOW_VALUE(cuLibraryGetGlobal(&address, &size, library, "counter"), "%zu", size);
  SHOW(cuLibraryGetGlobal(&address, &size, library, "absent"));
  SHOW(cuLibraryGetGlobal(&address, &size, wild<CUlibrary>(), "counter"));
  SHOW(cuLibraryGetManaged(&address, &size, library, "counter"));
  SHOW(cuKernelGetFunction(nullptr, kernel));
  SHOW(cuKernelGetFunction(&function, nullptr));
  SHOW(cuKernelGetFunction(&function, wild<CUkernel>()));
  SHOW(cuKernelGetFunction(&function, kernel));
  SHOW_VALUE(cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0), "%d", number);
  SHOW(cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 9));
  SHOW(cuKernelGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
  SHOW(cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, wild<CUkernel>(), 0));
  SHOW(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 50'000, kernel, 0));
  SHOW(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 50'000, kernel, 9));
  SHOW(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NUM_REGS, 5, kernel, 0));
  SHOW_VALUE(cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0), "%d",
             number);
  SHOW_VALUE(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function), "%d",
             number);
  SHOW(cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_L1, 0));
  LATE(cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_L1, 9));
  SHOW_VALUE(cuKernelGetName(&name, kernel), "%s", name);
  SHOW(cuKernelGetName(&name, wild<CUkernel>()));
  SHOW_VALUE(cuKernelGetParamInfo(kernel, 1, &offset, &size), "%zu %zu", offset, size);
  SHOW(cuKernelGetParamInfo(kernel, 3, &offset, &size));
  CUdeviceptr out = 0;
  unsigned value = 1, count = 100;
  cuMemAlloc(&out, 4096);
  void* parameters[] = {&out, &value, &count};
  SHOW(launch(function, 1, 128, 0, nullptr, parameters));
  SHOW(launch(function, 1, 128, 50'000, nullptr, parameters));  // the kernel's limit
  SHOW(launch(function, 1, 128, 50'001, nullptr, parameters));
  SHOW(launch(reinterpret_cast<CUfunction>(kernel), 1, 128, 0, nullptr, parameters));
  SHOW_VALUE(
      cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, reinterpret_cast<CUfunction>(kernel), 128, 0),
      "%d", number);
  SHOW(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  // Attributes set through the function override later cuKernelSetAttribute calls, whichever handle was used.
  constexpr auto shared = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  const auto as_function = reinterpret_cast<CUfunction>(kernel);
  for (const CUfunction set : {function, as_function}) {
    SHOW(cuFuncSetAttribute(set, shared, set == function ? 70'000 : 80'000));
    SHOW(cuKernelSetAttribute(shared, 55'000, kernel, 0));
    SHOW_VALUE(cuFuncGetAttribute(&number, shared, function), "%d", number);
    SHOW_VALUE(cuFuncGetAttribute(&number, shared, as_function), "%d", number);
    SHOW_VALUE(cuKernelGetAttribute(&number, shared, kernel, 0), "%d", number);
    for (const CUfunction launched : {function, as_function}) {
      SHOW(launch(launched, 1, 128, 70'000, nullptr, parameters));
      SHOW(launch(launched, 1, 128, 80'000, nullptr, parameters));
      SHOW(launch(launched, 1, 128, 80'001, nullptr, parameters));
    }
  }
  SHOW(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 30, kernel, 0));
  SHOW_VALUE(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, function), "%d",
             number);
  SHOW(cuCtxSynchronize());
  SHOW(cuLibraryUnload(nullptr));
  SHOW(cuLibraryUnload(wild<CUlibrary>()));
  SHOW(cuLibraryUnload(library));
  SHOW(cuLibraryUnload(library));
  SHOW(cuLibraryGetKernel(&kernel, library, "fill"));
  SHOW(cuKernelGetFunction(&function, kernel));
  SHOW(launch(reinterpret_cast<CUfunction>(kernel), 1, 128, 0, nullptr, parameters));
  SHOW(cuCtxSynchronize());
#endif
}

void unified_functions() {
  CUlibrary library = nullptr;
  void* function = nullptr;
  cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0);
  SHOW(cuLibraryGetUnifiedFunction(&function, library, "fill"));
  SHOW(cuLibraryGetUnifiedFunction(nullptr, library, "fill"));
  SHOW(cuLibraryGetUnifiedFunction(&function, library, nullptr));
  SHOW(cuLibraryGetUnifiedFunction(&function, nullptr, "fill"));
  cuLibraryUnload(library);
}

}  // namespace parity
