// Context-independent loading: a library, its kernels, and its module in a context.
#include "tests/e2e/apps/scenario.h"

using namespace app;

#if CUDA_VERSION >= 12000
extern const char kernels_ptx[];  // kernels.cu

SCENARIO(library_modules) {
  Device device;
  CUlibrary library = nullptr;
  OK(cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUmodule module = nullptr, again = nullptr;
  OK(cuLibraryGetModule(&module, library));
  OK(cuLibraryGetModule(&again, library));
  EXPECT(module == again);

  CUfunction add = nullptr;
  OK(cuModuleGetFunction(&add, module, "add"));
  GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&add, module, "absent"));
  OK(cuModuleGetFunction(&add, module, "add"));
  OK(cuFuncGetModule(&again, add));
  EXPECT(module == again);

  // The kernel looked up in the library has the same code and uses the same variables.
  CUkernel use_symbols = nullptr;
  CUfunction use_symbols_here = nullptr;
  OK(cuLibraryGetKernel(&use_symbols, library, "use_symbols"));
  OK(cuKernelGetFunction(&use_symbols_here, use_symbols));
  CUdeviceptr counter = 0, of_library = 0, values = 0;
  size_t bytes = 0;
  OK(cuModuleGetGlobal(&counter, &bytes, module, "counter"));
  EXPECT(bytes == 4);
  OK(cuLibraryGetGlobal(&of_library, &bytes, library, "counter"));
  EXPECT(counter == of_library);

  unsigned count = 100, value = 5;
  OK(cuMemAlloc(&values, count * sizeof(unsigned)));
  OK(cuMemsetD32(values, 0, count));
  void* use_parameters[] = {&values, &count};
  OK(cuLaunchKernel(use_symbols_here, 1, 1, 1, 128, 1, 1, 0, nullptr, use_parameters, nullptr));
  void* add_parameters[] = {&values, &value, &count};
  OK(cuLaunchKernel(add, 1, 1, 1, 128, 1, 1, 0, nullptr, add_parameters, nullptr));
  const auto result = download<unsigned>(values, count);
  for (unsigned i = 0; i < count; ++i) EXPECT(result[i] == i + 5);
  EXPECT(download<unsigned>(counter, 1)[0] == 7 + count);

  // Another context has its own module and its own copies of the library's variables.
  CUcontext other = create_context(device.device);
  OK(cuLibraryGetModule(&again, library));
  EXPECT(module != again);
  OK(cuModuleGetGlobal(&of_library, &bytes, again, "counter"));
  EXPECT(download<unsigned>(of_library, 1)[0] == 7);
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(device.context));
  OK(cuMemFree(values));
  OK(cuLibraryUnload(library));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuLibraryGetModule(&module, library));
}
#else
SCENARIO(library_modules) {
  std::puts("CUDA 11 has no libraries");
}
#endif
