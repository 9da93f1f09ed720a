// Modules.
#include "server/softgpu/runtime/module.h"

#include <string>

#include "server/softgpu/runtime/api/jit_options.h"
#include "server/softgpu/runtime/api/owner_call.h"
#include "server/softgpu/runtime/image.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

CUresult load(CUmodule* handle, const void* image, const JitOptions& options) {
  return call_in_context([&](Context& context) {
    if (handle == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = options.check(); result != CUDA_SUCCESS) return result;
    std::shared_ptr<const Program> program;
    std::string message;
    const CUresult loaded = load_image(image, context.device(), options.max_registers(), &program, &message);
    if (loaded != CUDA_SUCCESS) {
      options.report_failure(message);
      return loaded;
    }
    options.report_success(*program);
    Ref<Module> module;
    const CUresult result = Module::create(Ref<Context>::share(&context.root()), std::move(program), 0,
                                           nullptr, nullptr, &module);
    if (result == CUDA_SUCCESS) *handle = make_handle<CUmodule>(module->handle());
    return result;
  });
}

}  // namespace

// Not part of CUDA, for poold's workers: see wish_variable().
CUDA_EXPORT void softgpu_wish_variable(const char* name, unsigned long long address) {
  wish_variable(name, address);
}
CUDA_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count,
                                        CUjit_option* options, void** values) {
  return load(module, image, JitOptions(count, options, values));
}
CUDA_EXPORT CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return call([&] {
    if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::string content;
    const CUresult result = read_file(path, &content);
    return result != CUDA_SUCCESS ? result : load(module, content.c_str(), JitOptions(0, nullptr, nullptr));
  });
}

CUDA_EXPORT CUresult cuModuleUnload(CUmodule handle) {
  const Ref<Module> module = find<Module>(handle);
  const auto owner_of = [&] { return module ? Ref<Context>::share(&module->context()) : Ref<Context>(); };
  return call_in_context_or(owner_of, [&](Context&) {
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    module->context().synchronize();  // queued work may use the module's data
    module->unload();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return call([&] {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mode = runtime().config().eager_loading ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuModuleGetFunction(CUfunction* handle, CUmodule module_handle, const char* name) {
  return call_in_context([&](Context&) {
    if (handle == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Module> module = find<Module>(module_handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    const Ref<Function> function = module->function(name);
    if (!function) return CUDA_ERROR_NOT_FOUND;
    *handle = make_handle<CUfunction>(function->handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* size, CUmodule handle,
                                          const char* name) {
  return call_in_context([&](Context&) {
    if (name == nullptr || (address == nullptr && size == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    const Ref<Module> module = find<Module>(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t found = 0, bytes = 0;
    const CUresult result = module->global(name, &found, &bytes);
    if (result != CUDA_SUCCESS) return result;
    if (address != nullptr) *address = found;
    if (size != nullptr) *size = bytes;
    return CUDA_SUCCESS;
  });
}

#if CUDA_VERSION >= 12040
CUDA_EXPORT CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule handle) {
  return call([&] {
    const Ref<Module> module = find<Module>(handle);
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    *count = static_cast<unsigned>(module->program().kernels().size());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int count, CUmodule handle) {
  return call([&] {
    const Ref<Module> module = find<Module>(handle);
    if (functions == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    unsigned written = 0;
    for (const KernelInfo& kernel : module->program().kernels()) {
      if (written == count) break;
      const Ref<Function> function = module->function(kernel.name);
      if (function) functions[written++] = make_handle<CUfunction>(function->handle);
    }
    return CUDA_SUCCESS;
  });
}
#endif
