// Libraries and their kernels (client/session/module.h).
#include "client/session/module.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

#if CUDA_VERSION >= 12000
namespace {

[[maybe_unused]] CUresult names_of(CUlibrary library, const std::vector<std::string>** names) {
  const Object* known = handles().find(Kind::library, cuda::handle_bits(library));
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  Context* context = current_context();
  return kernel_names(context ? *context->session : *known->session, context, Kind::library,
                      cuda::handle_bits(library), names);
}

}  // namespace

CUDA_EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option* options,
                                       void** values, unsigned int count, CUlibraryOption* library_options,
                                       void** library_values, unsigned int library_count) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    Context* context = current_context();
    Session* const session = context ? context->session : sessions().front().get();
    const JitOptions jit(count, options, values);
    if (!library || !image || !jit.valid()) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = 0;
    const CUresult result = load(*session, context, Kind::library, image, jit, &handle);
    if (result == CUDA_SUCCESS) *library = cuda::handle_from_bits<CUlibrary>(handle);
    return result;
  });
}

CUDA_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options,
                                           void** values, unsigned int count,
                                           CUlibraryOption* library_options, void** library_values,
                                           unsigned int library_count) {
  return guarded([&]() -> CUresult {
    if (!library || !path) return CUDA_ERROR_INVALID_VALUE;
    std::string content;
    if (const CUresult result = read_file(path, &content); result != CUDA_SUCCESS) return result;
    return cuLibraryLoadData(library, content.data(), options, values, count, library_options, library_values,
                             library_count);
  });
}

CUDA_EXPORT CUresult cuLibraryUnload(CUlibrary library) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    auto* code = handles().find_as<Code>(Kind::library, cuda::handle_bits(library));
    if (!code) return CUDA_ERROR_INVALID_HANDLE;
    std::map<std::string, uint64_t> functions;
    std::map<std::pair<uint64_t, uint32_t>, uint64_t> modules;
    {
      std::lock_guard lock(code->mutex);
      functions.swap(code->functions);
      modules.swap(code->modules);
    }
    for (const auto& [name, handle] : functions) handles().retire(handle);
    for (const auto& [context, handle] : modules) handles().retire(handle);
    code->forget_globals();
    for (const auto& session : sessions()) {
      if (!(code->loaded_sessions.load() >> session->index() & 1)) continue;
      (void)session->post(rows::cuLibraryUnload::kId, nullptr,
                          [&](wire::Writer& writer) { writer.put(code->handle); });
    }
    return rows::cuLibraryUnload::forward(library);
  });
}

CUDA_EXPORT CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!kernel || !name) return CUDA_ERROR_INVALID_VALUE;
    const Object* known = handles().find(Kind::library, cuda::handle_bits(library));
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    Context* context = current_context();
    Session* const session = context ? context->session : known->session;
    uint64_t handle = 0;
    const CUresult result =
        look_up(*session, context, Kind::library, Kind::kernel, cuda::handle_bits(library), name, &handle);
    if (result == CUDA_SUCCESS) *kernel = cuda::handle_from_bits<CUkernel>(handle);
    return result;
  });
}

#if CUDA_VERSION >= 12040
CUDA_EXPORT CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary library) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    const std::vector<std::string>* names = nullptr;
    const CUresult result = names_of(library, &names);
    if (result == CUDA_SUCCESS) *count = static_cast<unsigned>(names->size());
    return result;
  });
}

CUDA_EXPORT CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count, CUlibrary library) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!kernels || count == 0) return CUDA_ERROR_INVALID_VALUE;
    const std::vector<std::string>* names = nullptr;
    CUresult result = names_of(library, &names);
    for (size_t i = 0; result == CUDA_SUCCESS && i < std::min<size_t>(count, names->size()); ++i) {
      result = cuLibraryGetKernel(&kernels[i], library, (*names)[i].c_str());
    }
    return result;
  });
}
#endif

#if CUDA_VERSION >= 12050
CUDA_EXPORT CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  const auto* known = handles().find_as<Function>(Kind::kernel, cuda::handle_bits(kernel));
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  *library = cuda::handle_from_bits<CUlibrary>(known->owner);
  return CUDA_SUCCESS;
}
#endif

CUDA_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                        const char* name) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    return get_global(*session, context, Kind::library, cuda::handle_bits(library), name, address, bytes);
  });
}

CUDA_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                         const char* name) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    const Object* known = handles().find(Kind::library, cuda::handle_bits(library));
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    Context* context = current_context();
    if (context && !context->active) context = nullptr;  // managed variables exist without a context
    bool managed = false;
    CUdeviceptr at = 0;
    const CUresult result = get_global(context ? *context->session : *known->session, context, Kind::library,
                                       cuda::handle_bits(library), name, &at, bytes, &managed);
    if (result != CUDA_SUCCESS) return result;
    if (!managed) return CUDA_ERROR_NOT_FOUND;
    if (address) *address = at;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuLibraryGetModule(CUmodule* made, CUlibrary given) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!made) return CUDA_ERROR_INVALID_VALUE;
    auto* library = handles().find_as<Code>(Kind::library, cuda::handle_bits(given));
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    // A library without code for the device has no module. Only a look-up shows that, so the first call in a
    // context makes one.
    bool asked = false;
    {
      std::lock_guard lock(library->mutex);
      asked = library->modules.contains({context->handle, context->epoch.load()});
    }
    uint64_t nothing = 0;
    if (!asked && look_up(*session, context, Kind::library, Kind::kernel, library->handle, "", &nothing) ==
                      CUDA_ERROR_NO_BINARY_FOR_GPU) {
      return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    std::lock_guard lock(library->mutex);
    uint64_t& handle = library->modules[{context->handle, context->epoch.load()}];
    if (handle == 0) {
      auto module = std::make_unique<Code>();
      module->context = context->handle;
      module->library = library->handle;
      handle = session->mint(Kind::module, std::move(module));
      if (handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = cuda::handle_from_bits<CUmodule>(handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuKernelGetFunction(CUfunction* made, CUkernel given) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!made) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = 0;
    const CUresult result = function_of_kernel(*session, context, cuda::handle_bits(given), &handle);
    if (result == CUDA_SUCCESS) *made = cuda::handle_from_bits<CUfunction>(handle);
    return result;
  });
}
#endif
