// Modules (client/session/module.h).
#include "client/session/module.h"

#include <cstdlib>

#include "client/api/destroy.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

CUresult load_module(CUmodule* module, const void* image, const JitOptions& jit) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!module || !image || !jit.valid()) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = 0;
    const CUresult result = load(*session, context, Kind::module, image, jit, &handle);
    if (result == CUDA_SUCCESS) *module = cuda::handle_from_bits<CUmodule>(handle);
    return result;
  });
}

// Returns the library behind a module of cuLibraryGetModule; 0: it is an ordinary module, or none.
uint64_t library_behind(CUmodule module) {
  const auto* code = handles().find_as<Code>(Kind::module, cuda::handle_bits(module));
  return code ? code->library : 0;
}

[[maybe_unused]] CUresult names_of(CUmodule module, const std::vector<std::string>** names) {
  Session* session = nullptr;
  Context* context = nullptr;
  if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
  if (const uint64_t library = library_behind(module))
    return kernel_names(*session, context, Kind::library, library, names);
  CallTarget target{session, context};
  if (const Object* known = handles().find(Kind::module, cuda::handle_bits(module))) redirect(*known, target);
  if (!target.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return kernel_names(*target.session, target.context, Kind::module, cuda::handle_bits(module), names);
}

}  // namespace

CUDA_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count,
                                        CUjit_option* options, void** values) {
  return load_module(module, image, {count, options, values});
}

CUDA_EXPORT CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return guarded([&]() -> CUresult {
    if (!module || !path) return CUDA_ERROR_INVALID_VALUE;
    std::string content;
    if (const CUresult result = read_file(path, &content); result != CUDA_SUCCESS) return result;
    return load_module(module, content.data(), {});
  });
}

CUDA_EXPORT CUresult cuModuleUnload(CUmodule module) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    auto* code = handles().find_as<Code>(Kind::module, cuda::handle_bits(module));
    if (!code) return CUDA_ERROR_INVALID_HANDLE;
    if (code->library != 0) return CUDA_ERROR_NOT_PERMITTED;  // freed with its library
    std::map<std::string, uint64_t> functions;
    {
      std::lock_guard lock(code->mutex);
      functions.swap(code->functions);
    }
    for (const auto& [name, handle] : functions) handles().retire(handle);
    code->forget_globals();
    return destroy<rows::cuModuleUnload>(Kind::module, module);
  });
}

CUDA_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = 0;
    CUresult result = CUDA_SUCCESS;
    if (const uint64_t library = library_behind(module)) {
      uint64_t kernel = 0;
      result = look_up(*session, context, Kind::library, Kind::kernel, library, name, &kernel);
      if (result == CUDA_SUCCESS) result = function_of_kernel(*session, context, kernel, &handle);
    } else {
      CallTarget target{session, context};
      if (const Object* known = handles().find(Kind::module, cuda::handle_bits(module)))
        redirect(*known, target);
      if (!target.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
      result = look_up(*target.session, target.context, Kind::module, Kind::function,
                       cuda::handle_bits(module), name, &handle);
    }
    if (result == CUDA_SUCCESS) *function = cuda::handle_from_bits<CUfunction>(handle);
    return result;
  });
}

CUDA_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                                          const char* name) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (const uint64_t library = library_behind(module)) {
      return get_global(*session, context, Kind::library, library, name, address, bytes);
    }
    CallTarget target{session, context};
    if (const Object* known = handles().find(Kind::module, cuda::handle_bits(module)))
      redirect(*known, target);
    if (!target.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return get_global(*target.session, target.context, Kind::module, cuda::handle_bits(module), name, address,
                      bytes);
  });
}

#if CUDA_VERSION >= 12040
CUDA_EXPORT CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule module) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    const std::vector<std::string>* names = nullptr;
    const CUresult result = names_of(module, &names);
    if (result == CUDA_SUCCESS) *count = static_cast<unsigned>(names->size());
    return result;
  });
}

CUDA_EXPORT CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int count, CUmodule module) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!functions || count == 0) return CUDA_ERROR_INVALID_VALUE;
    const std::vector<std::string>* names = nullptr;
    CUresult result = names_of(module, &names);
    for (size_t i = 0; result == CUDA_SUCCESS && i < std::min<size_t>(count, names->size()); ++i) {
      result = cuModuleGetFunction(&functions[i], module, (*names)[i].c_str());
    }
    return result;
  });
}
#endif

CUDA_EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  const char* wanted = std::getenv("CUDA_MODULE_LOADING");
  *mode = wanted && std::strcmp(wanted, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}
