// Modules and libraries: the image is named first and travels, as a bundle of its files, only if the server does not have
// it. The load waits for the server's verdict.
#include "client/module.h"

#include <sys/mman.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "client/log.h"
#include "protocol/cuda/exports.h"
#include "protocol/cuda/fatbin.h"

using namespace gpupool;
using namespace gpupool::client;

namespace gpupool::client {

Function* find_function(CUfunction function) {
  const uint64_t handle = cuda::handle_bits(function);
  if (auto* found = handles().find_as<Function>(Kind::function, handle)) return found;
  return handles().find_as<Function>(Kind::kernel, handle);
}

bool read_function_info(const wire::Buffer& reply, Function& function) {
  wire::Reader reader(reply);
  const auto info = reader.get<wire::FunctionInfo>();
  if (!reader.ok() || info.parameter_count > wire::kMaxParameters) return false;
  function.parameters.resize(info.parameter_count);
  for (auto& parameter : function.parameters) {
    parameter = reader.get<wire::ParameterInfo>();
    if (parameter.offset > wire::kMaxParameterBytes || parameter.size > wire::kMaxParameterBytes - parameter.offset) {
      return false;
    }
    function.parameter_bytes = std::max(function.parameter_bytes, parameter.offset + parameter.size);
  }
  for (uint32_t i = 0; i < wire::kFunctionAttributes; ++i) function.attributes[i] = info.attributes[i];
  return reader.finished();
}

}  // namespace gpupool::client

namespace {

struct JitOptions {
  unsigned count = 0;
  CUjit_option* options = nullptr;
  void** values = nullptr;
};

CUresult upload_image(Session& session, cuda::ByteSpan all, uint64_t* upload) {
  *upload = session.mint(Kind::upload, nullptr);
  handles().retire(*upload);  // only the number is needed; its generation makes it unique
  for (size_t at = 0; at < all.size(); at += wire::kBulkChunkBytes) {
    const auto part = all.subspan(at, std::min<size_t>(wire::kBulkChunkBytes, all.size() - at));
    const iovec payload{const_cast<std::byte*>(part.data()), part.size()};
    const wire::UploadPart head{*upload, all.size()};
    if (!session.queue().send_bulk(static_cast<uint16_t>(wire::Command::upload_part), 0, 0, head, {&payload, 1},
                                   [](uint64_t) {})) {
      return Session::failure();
    }
  }
  return CUDA_SUCCESS;
}

// The server's JIT log goes where the program asked for it.
void deliver_log(const std::string& log, CUresult result, const JitOptions& jit) {
  const bool failed = result != CUDA_SUCCESS;
  for (unsigned i = 0; i < jit.count; ++i) {
    const bool wanted = jit.options[i] == (failed ? CU_JIT_ERROR_LOG_BUFFER : CU_JIT_INFO_LOG_BUFFER);
    if (!wanted || !jit.values[i]) continue;
    const CUjit_option size_option = failed ? CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES : CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES;
    for (unsigned k = 0; k < jit.count; ++k) {
      if (jit.options[k] != size_option) continue;
      const size_t room = reinterpret_cast<uintptr_t>(jit.values[k]);
      if (room == 0) continue;
      const size_t length = std::min(log.size(), room - 1);
      std::memcpy(jit.values[i], log.data(), length);
      static_cast<char*>(jit.values[i])[length] = '\0';
      jit.values[k] = reinterpret_cast<void*>(length + 1);
    }
  }
  if (failed && !log.empty()) complain("the device refused a module: %s", log.c_str());
}

// False: the server does not have the image, or does not keep images at all.
bool load_by_name(Session& session, Context* context, wire::Command command, uint64_t handle, cuda::ByteSpan bundle,
                  wire::Buffer& reply, CUresult* result) {
  const image::Nonce* const nonce = session.image_nonce(bundle.size());
  if (!nonce) return false;
  struct {
    wire::LoadImage load;
    wire::ImageName name;
  } const body{{handle, 0}, image::name(*nonce, bundle)};
  *result = session.call(command, context, body, reply);
  return !reply.empty() || static_cast<int>(*result) != wire::kImageMissing;
}

// The server's verdict on an image, sent if need be.
CUresult load_bundle(Session& session, Context* context, Kind kind, uint64_t handle, cuda::ByteSpan bundle, wire::Buffer& reply) {
  const auto command = kind == Kind::module ? wire::Command::load_module : wire::Command::load_library;
  CUresult result = CUDA_SUCCESS;
  if (load_by_name(session, context, command, handle, bundle, reply, &result)) return result;
  uint64_t upload = 0;
  result = upload_image(session, bundle, &upload);
  return result == CUDA_SUCCESS ? session.call(command, context, wire::LoadImage{handle, upload}, reply) : result;
}

CUresult load(Session& session, Context* context, Kind kind, const void* image, const JitOptions& jit, uint64_t* handle) {
  if (const CUresult early = session.before_call(context); early != CUDA_SUCCESS) return early;
  cuda::ImageSpans spans;
  if (const CUresult result = cuda::locate_image(image, spans); result != CUDA_SUCCESS) return result;
  cuda::Bytes bundle;
  if (const CUresult result = cuda::bundle(spans, bundle); result != CUDA_SUCCESS) return result;
  auto code = std::make_unique<Code>();
  code->context = Session::handle_of(context);
  if (kind == Kind::library && sessions().size() > 1) code->bundle.assign(bundle.view().begin(), bundle.view().end());
  *handle = session.mint(kind, std::move(code));
  if (*handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::Buffer reply;
  const CUresult result = load_bundle(session, context, kind, *handle, bundle.view(), reply);
  wire::Reader reader(reply);
  deliver_log(std::string(reader.get_text()), result, jit);
  if (result != CUDA_SUCCESS) handles().retire(*handle);
  return result;
}

CUresult load_module(CUmodule* module, const void* image, const JitOptions& jit) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = ready_with_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!module || !image || (jit.count && (!jit.options || !jit.values))) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = 0;
    const CUresult result = load(*session, context, Kind::module, image, jit, &handle);
    if (result == CUDA_SUCCESS) *module = cuda::handle_from_bits<CUmodule>(handle);
    return result;
  });
}

// A file is read whole and loaded from memory; PTX needs its NUL.
CUresult read_file(const char* path, std::string* content) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  content->assign(std::istreambuf_iterator<char>(file), {});
  content->push_back('\0');
  return CUDA_SUCCESS;
}

// The library that a module of cuLibraryGetModule stands for; 0: it is a module of its own, or none.
uint64_t library_behind(CUmodule module) {
  const auto* code = handles().find_as<Code>(Kind::module, cuda::handle_bits(module));
  return code ? code->library : 0;
}

// The handle of a function by name: from memory, or with one round trip.
CUresult look_up(Session& session, Context* context, Kind owner_kind, Kind kind, uint64_t owner, const char* name,
                 uint64_t* handle) {
  auto* code = handles().find_as<Code>(owner_kind, owner);
  if (!code) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = code->come_to(session); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(code->mutex);
  if (const auto known = code->functions.find(name); known != code->functions.end()) {
    *handle = known->second;
    return CUDA_SUCCESS;
  }
  auto fresh = std::make_unique<Function>();
  Function& function = *fresh;
  function.name = name;
  function.owner = owner;
  function.context = Session::handle_of(context);
  *handle = session.mint(kind, std::move(fresh));
  if (*handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::Buffer reply;
  const auto command = kind == Kind::function ? wire::Command::get_function : wire::Command::get_kernel;
  CUresult result = session.call(command, context, name, reply, wire::GetFunction{*handle, owner});
  if (result == CUDA_SUCCESS && !read_function_info(reply, function)) {
    session.fail({ErrorCode::malformed, "its description of a kernel makes no sense"});
    result = Session::failure();
  }
  if (result != CUDA_SUCCESS) {
    handles().retire(*handle);
    return result;
  }
  code->functions.emplace(name, *handle);
  return CUDA_SUCCESS;
}

// The function of a library's kernel in a context.
[[maybe_unused]] CUresult function_of_kernel(Session& session, Context* context, uint64_t given, uint64_t* made) {
  auto* kernel = handles().find_as<Function>(Kind::kernel, given);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = kernel->come_to(session); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(kernel->mutex);
  uint64_t& handle = kernel->functions[{context->handle, context->epoch.load()}];
  if (handle == 0 || !handles().find(Kind::function, handle)) {
    auto function = std::make_unique<Function>();
    function->name = kernel->name;
    function->owner = kernel->owner;
    function->context = context->handle;
    function->parameters = kernel->parameters;
    function->parameter_bytes = kernel->parameter_bytes;
    for (uint32_t i = 0; i < wire::kFunctionAttributes; ++i) function->attributes[i] = kernel->attributes[i].load();
    handle = session.mint(Kind::function, std::move(function));
    const CUresult result =
        session.post(wire::Command::kernel_function, context, wire::KernelFunction{handle, kernel->handle});
    if (result != CUDA_SUCCESS) {
      handles().retire(handle);
      handle = 0;
      return result;
    }
  }
  *made = handle;
  return CUDA_SUCCESS;
}

CUresult get_global(Session& session, Context* context, Kind owner_kind, uint64_t owner, const char* name,
                    CUdeviceptr* address, size_t* bytes) {
  auto* code = handles().find_as<Code>(owner_kind, owner);
  if (!code) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = code->come_to(session); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(code->mutex);
  auto& globals = code->globals[{context->handle, context->epoch.load()}];
  auto known = globals.find(name);
  if (known == globals.end()) {
    wire::Buffer reply;
    const CUresult result = session.call(wire::Command::get_global, context, name, reply, wire::GetGlobal{owner});
    if (result != CUDA_SUCCESS) return result;
    wire::Reader reader(reply);
    const auto info = reader.get<wire::GlobalInfo>();
    if (!reader.finished()) return Session::failure();
    Allocation about;
    about.address = info.address;
    about.size = info.size;
    about.context = Session::handle_of(context);
    about.device = context->device;
    session.addresses().add_foreign(about);
    known = globals.emplace(name, info).first;
  }
  if (address) *address = known->second.address;
  if (bytes) *bytes = known->second.size;
  return CUDA_SUCCESS;
}

}  // namespace

namespace gpupool::client {

CUresult Code::come_to(Session& other) {
  const uint64_t bit = uint64_t{1} << other.index();
  if (session == &other || elsewhere.load(std::memory_order_acquire) & bit) return CUDA_SUCCESS;
  if (cuda::kind_of(handle) != Kind::library) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(mutex);
  if (elsewhere.load() & bit) return CUDA_SUCCESS;
  wire::Buffer reply;
  const CUresult result = load_bundle(other, nullptr, Kind::library, handle, bundle, reply);
  wire::Reader reader(reply);
  deliver_log(std::string(reader.get_text()), result, {});
  if (result == CUDA_SUCCESS) elsewhere.fetch_or(bit);
  return result;
}

CUresult Function::come_to(Session& other) {
  const uint64_t bit = uint64_t{1} << other.index();
  if (session == &other || elsewhere.load(std::memory_order_acquire) & bit) return CUDA_SUCCESS;
  auto* const library = handles().find_as<Code>(Kind::library, owner);
  if (cuda::kind_of(handle) != Kind::kernel || !library) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = library->come_to(other); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(mutex);
  if (elsewhere.load() & bit) return CUDA_SUCCESS;
  // Its parameters are the same everywhere; what its attributes are there is asked by device (cuKernelGetAttribute).
  wire::Buffer reply;
  const CUresult result = other.call(wire::Command::get_kernel, nullptr, name, reply, wire::GetFunction{handle, owner});
  if (result == CUDA_SUCCESS) elsewhere.fetch_or(bit);
  return result;
}

}  // namespace gpupool::client

CUDA_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) { return load_module(module, image, {}); }

CUDA_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count, CUjit_option* options,
                                        void** values) {
  return load_module(module, image, {count, options, values});
}

CUDA_EXPORT CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) { return load_module(module, image, {}); }

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
    if (code->library != 0) return CUDA_ERROR_NOT_PERMITTED;  // it goes with its library
    std::map<std::string, uint64_t> functions;
    {
      std::lock_guard lock(code->mutex);
      functions.swap(code->functions);
    }
    for (const auto& [name, handle] : functions) handles().retire(handle);
    return rows::cuModuleUnload::forward(module);
  });
}

CUDA_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = ready_with_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = 0;
    CUresult result = CUDA_SUCCESS;
    if (const uint64_t library = library_behind(module)) {
      uint64_t kernel = 0;
      result = look_up(*session, context, Kind::library, Kind::kernel, library, name, &kernel);
      if (result == CUDA_SUCCESS) result = function_of_kernel(*session, context, kernel, &handle);
    } else {
      Place place{session, context};
      if (const Object* known = handles().find(Kind::module, cuda::handle_bits(module))) go_to(*known, place);
      if (!place.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
      result = look_up(*place.session, place.context, Kind::module, Kind::function, cuda::handle_bits(module), name, &handle);
    }
    if (result == CUDA_SUCCESS) *function = cuda::handle_from_bits<CUfunction>(handle);
    return result;
  });
}

CUDA_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = ready_with_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (const uint64_t library = library_behind(module)) {
      return get_global(*session, context, Kind::library, library, name, address, bytes);
    }
    Place place{session, context};
    if (const Object* known = handles().find(Kind::module, cuda::handle_bits(module))) go_to(*known, place);
    if (!place.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return get_global(*place.session, place.context, Kind::module, cuda::handle_bits(module), name, address, bytes);
  });
}

CUDA_EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  const char* wanted = std::getenv("CUDA_MODULE_LOADING");
  *mode = wanted && std::strcmp(wanted, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option* options, void** values,
                                       unsigned int count, CUlibraryOption* library_options,
                                       void** library_values, unsigned int library_count) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    Context* context = current_context();
    Session* const session = context ? context->session : sessions().front().get();
    if (!library || !image || (count && (!options || !values))) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = 0;
    const CUresult result = load(*session, context, Kind::library, image, {count, options, values}, &handle);
    if (result == CUDA_SUCCESS) *library = cuda::handle_from_bits<CUlibrary>(handle);
    return result;
  });
}

CUDA_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options, void** values,
                                           unsigned int count, CUlibraryOption* library_options,
                                           void** library_values, unsigned int library_count) {
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
    for (const auto& session : sessions()) {
      if (!(code->elsewhere.load() >> session->index() & 1)) continue;
      (void)session->post(rows::cuLibraryUnload::kId, nullptr, [&](wire::Writer& writer) { writer.put(code->handle); });
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
    const CUresult result = look_up(*session, context, Kind::library, Kind::kernel,
                                    cuda::handle_bits(library), name, &handle);
    if (result == CUDA_SUCCESS) *kernel = cuda::handle_from_bits<CUkernel>(handle);
    return result;
  });
}

CUDA_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = ready_with_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    return get_global(*session, context, Kind::library, cuda::handle_bits(library), name, address, bytes);
  });
}

// Managed memory is not forwarded yet, so no library has managed variables that could be found.
CUDA_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  return CUDA_ERROR_NOT_FOUND;
}

CUDA_EXPORT CUresult cuLibraryGetModule(CUmodule* made, CUlibrary given) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = ready_with_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!made) return CUDA_ERROR_INVALID_VALUE;
    auto* library = handles().find_as<Code>(Kind::library, cuda::handle_bits(given));
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
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
    if (const CUresult result = ready_with_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!made) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = 0;
    const CUresult result = function_of_kernel(*session, context, cuda::handle_bits(given), &handle);
    if (result == CUDA_SUCCESS) *made = cuda::handle_from_bits<CUfunction>(handle);
    return result;
  });
}
#endif
