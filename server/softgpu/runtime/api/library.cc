// Libraries and their kernels.
#include "server/softgpu/runtime/library.h"

#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/api/jit_options.h"
#include "server/softgpu/runtime/image.h"

#if CUDA_VERSION >= 12000

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

// Needs no context, because all devices have the same compute capability.
CUresult load(CUlibrary* handle, const void* image, const JitOptions& options) {
  return call([&] {
    if (handle == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = options.check(); result != CUDA_SUCCESS) return result;
    std::shared_ptr<const Program> program;
    std::string message;
    const CUresult loaded =
        load_image(image, *runtime().devices().front(), options.max_registers(), &program, &message);
    // Loading a fat binary without code for the devices succeeds, and calls that need the code fail: CUDA
    // 12's runtimes load a fat binary once, and look up kernels in it even if that failed.
    const bool deferred = loaded == CUDA_ERROR_NO_BINARY_FOR_GPU && gpupool::cuda::is_fat_binary(image);
    if (loaded != CUDA_SUCCESS && !deferred) {
      options.report_failure(message);
      return loaded;
    }
    // The reason goes to the info log; if the program gave none, to stderr when a call needs the code.
    if (deferred ? options.report_success(message) : options.report_success(*program)) message.clear();
    Ref<Library> library;
    const CUresult result = Library::create(std::move(program), std::move(message), &library);
    if (result == CUDA_SUCCESS) *handle = make_handle<CUlibrary>(library->handle());
    return result;
  });
}

template <class Body>
CUresult call_on_kernel(CUkernel handle, const Body& body) noexcept {
  return call([&] {
    const Ref<Kernel> kernel = find<Kernel>(handle);
    return kernel ? body(*kernel) : CUDA_ERROR_INVALID_HANDLE;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option* jit_options,
                                       void** jit_values, unsigned int jit_count, CUlibraryOption*, void**,
                                       unsigned int) {
  return load(library, image, JitOptions(jit_count, jit_options, jit_values));
}

CUDA_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* jit_options,
                                           void** jit_values, unsigned int jit_count, CUlibraryOption*,
                                           void**, unsigned int) {
  return call([&] {
    std::string content;
    const CUresult result = read_file(path, &content);
    return result != CUDA_SUCCESS
               ? result
               : load(library, content.c_str(), JitOptions(jit_count, jit_options, jit_values));
  });
}

CUDA_EXPORT CUresult cuLibraryUnload(CUlibrary handle) {
  return call([&] {
    const Ref<Library> library = find<Library>(handle);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    library->unload();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuLibraryGetKernel(CUkernel* handle, CUlibrary library_handle, const char* name) {
  return call([&] {
    if (handle == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Ref<Library> library;
    if (const CUresult result = find_library(handle_value(library_handle), &library); result != CUDA_SUCCESS)
      return result;
    const Ref<Kernel> kernel = library->kernel(name);
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    *handle = make_handle<CUkernel>(kernel->handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuLibraryGetModule(CUmodule* handle, CUlibrary library_handle) {
  return call_in_context([&](Context& context) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Ref<Library> library;
    if (const CUresult result = find_library(handle_value(library_handle), &library); result != CUDA_SUCCESS)
      return result;
    Ref<Module> module;
    const CUresult result = library->module(context, &module);
    if (result == CUDA_SUCCESS) *handle = make_handle<CUmodule>(module->handle());
    return result;
  });
}

CUDA_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* size, CUlibrary handle,
                                        const char* name) {
  return call_in_context([&](Context& context) {
    if (name == nullptr || (address == nullptr && size == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    Ref<Library> library;
    if (const CUresult result = find_library(handle_value(handle), &library); result != CUDA_SUCCESS)
      return result;
    Ref<Module> module;
    if (const CUresult result = library->module(context, &module); result != CUDA_SUCCESS) return result;
    uint64_t found = 0, bytes = 0;
    const CUresult result = module->global(name, &found, &bytes);
    if (result != CUDA_SUCCESS) return result;
    if (address != nullptr) *address = found;
    if (size != nullptr) *size = bytes;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* size, CUlibrary handle,
                                         const char* name) {
  return call([&] {
    if (name == nullptr || (address == nullptr && size == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    Ref<Library> library;
    if (const CUresult result = find_library(handle_value(handle), &library); result != CUDA_SUCCESS)
      return result;
    uint64_t found = 0, bytes = 0;
    const CUresult result = library->managed(name, &found, &bytes);
    if (result != CUDA_SUCCESS) return result;
    if (address != nullptr) *address = found;
    if (size != nullptr) *size = bytes;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuKernelGetFunction(CUfunction* handle, CUkernel kernel_handle) {
  return call_in_context([&](Context& context) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Kernel> kernel = find<Kernel>(kernel_handle);
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    Ref<Function> function;
    const CUresult result = kernel->function(context, &function);
    if (result == CUDA_SUCCESS) *handle = make_handle<CUfunction>(function->handle);
    return result;
  });
}

CUDA_EXPORT CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle,
                                          CUdevice index) {
  return call_on_kernel(handle, [&](Kernel& kernel) {
    Device* device = runtime().device(index);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return kernel_attribute(kernel.info(), kernel.settings(index), device->compute_capability(), attribute,
                            value);
  });
}

CUDA_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                                          CUdevice index) {
  return call_on_kernel(handle, [&](Kernel& kernel) {
    if (runtime().device(index) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    return set_kernel_attribute(kernel.info(), kernel.settings(index), attribute, value);
  });
}

CUDA_EXPORT CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice index) {
  return call_on_kernel(handle, [&](Kernel&) {
    if (runtime().device(index) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    return static_cast<unsigned>(config) > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE
                                                                      : CUDA_SUCCESS;
  });
}

#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuKernelGetName(const char** name, CUkernel handle) {
  return call_on_kernel(handle, [&](Kernel& kernel) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = kernel.info().name.c_str();
    return CUDA_SUCCESS;
  });
}
#endif

#if CUDA_VERSION >= 12040
CUDA_EXPORT CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* size) {
  return call_on_kernel(handle, [&](Kernel& kernel) {
    if (offset == nullptr || index >= kernel.info().parameters.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = kernel.info().parameters[index].offset;
    if (size != nullptr) *size = kernel.info().parameters[index].size;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
  return call([&] {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Ref<Library> library;
    if (const CUresult result = find_library(handle_value(handle), &library); result != CUDA_SUCCESS)
      return result;
    *count = static_cast<unsigned>(library->program().kernels().size());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count, CUlibrary handle) {
  return call([&] {
    if (kernels == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    Ref<Library> library;
    if (const CUresult result = find_library(handle_value(handle), &library); result != CUDA_SUCCESS)
      return result;
    const std::vector<Ref<Kernel>> all = library->kernels();
    for (unsigned i = 0; i < count && i < all.size(); ++i) kernels[i] = make_handle<CUkernel>(all[i]->handle);
    return CUDA_SUCCESS;
  });
}
#endif

#if CUDA_VERSION >= 12050
CUDA_EXPORT CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel handle) {
  return call_on_kernel(handle, [&](Kernel& kernel) {
    if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *library = make_handle<CUlibrary>(kernel.library().handle());
    return CUDA_SUCCESS;
  });
}
#endif

#endif
