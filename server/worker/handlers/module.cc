// Handlers for modules, libraries, and lookups in them.
#include <algorithm>
#include <cstring>
#include <optional>

#include "protocol/wire/images.h"
#include "server/worker/handlers/commands.h"
#include "server/worker/migration/variables.h"

namespace gpupool::worker::commands {
namespace {

using cuda::Kind;

// Reads a body that consists of a T and a text. Returns false for any other body, or a NUL in the text.
template <class T>
bool with_text(Command& command, T& body, std::string& text) {
  body = command.body.get<T>();
  text = command.body.get_text();
  return command.body.finished() && text.find('\0') == std::string::npos;
}

// The device whose attributes apply to a kernel; without a context, device 0.
CUdevice device_of(const Contexts& contexts) {
  const ContextState* const context = contexts.current();
  return context ? context->device : 0;
}

Outcome describe(Replies& replies, wire::FunctionInfo& info, std::vector<wire::ParameterInfo>& parameters) {
  info.parameter_count = static_cast<uint32_t>(parameters.size());
  wire::Writer writer(replies.body);
  writer.put(info);
  writer.put_bytes(parameters.data(), parameters.size() * sizeof(wire::ParameterInfo));
  return CUDA_SUCCESS;
}

// Returns the parameters in order, from the image if it was kept, else from the driver (`ask`:
// cu*GetParamInfo of one parameter).
template <class Ask>
std::vector<wire::ParameterInfo> parameters_of(const Images& images, uint64_t owner, const std::string& name,
                                               Ask&& ask) {
  std::vector<wire::ParameterInfo> parameters;
  if (const auto* const layout = images.layout(owner, name)) {
    for (const cuda::KernelParam& parameter : *layout)
      parameters.push_back({parameter.offset, parameter.size});
    return parameters;
  }
  size_t offset = 0;
  size_t size = 0;
  while (parameters.size() < wire::kMaxParameters && ask(parameters.size(), &offset, &size) == CUDA_SUCCESS) {
    parameters.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(size)});
  }
  return parameters;
}

#if CUDA_VERSION >= 12040
// Collects the names of all functions of a module or kernels of a library; they live as long as the owner.
template <class Owner, class Object>
CUresult all_names(Owner owner, const DeviceCall<CUresult (*)(unsigned*, Owner)>& count_of,
                   const DeviceCall<CUresult (*)(Object*, unsigned, Owner)>& enumerate,
                   const DeviceCall<CUresult (*)(const char**, Object)>& name_of,
                   std::vector<const char*>& names) {
  if (!count_of || !enumerate || !name_of) return CUDA_ERROR_NOT_SUPPORTED;
  unsigned count = 0;
  if (const CUresult result = count_of(&count, owner); result != CUDA_SUCCESS || count == 0) return result;
  std::vector<Object> objects(count);
  if (const CUresult result = enumerate(objects.data(), count, owner); result != CUDA_SUCCESS) return result;
  for (const Object object : objects) {
    const char* name = nullptr;
    if (const CUresult result = name_of(&name, object); result != CUDA_SUCCESS) return result;
    names.push_back(name);
  }
  return CUDA_SUCCESS;
}
#endif

// The image of a load command, from an upload or from poold's cache.
struct RequestedImage {
  bool malformed = false;
  wire::LoadImage body{};
  std::optional<wire::ImageName> name;
  std::vector<wire::JitOption> options;
  std::optional<std::vector<std::byte>> uploaded;
  std::optional<MappedImage> cached;

  bool available() const { return uploaded || cached; }
  std::span<const std::byte> bundle() const {
    return uploaded ? std::span<const std::byte>(*uploaded).first(uploaded->size() - 1) : cached->bytes();
  }
};

// The image for a migration. One that poold keeps is shared with it.
class RequestedBytes final : public KeptImage {
 public:
  explicit RequestedBytes(RequestedImage&& image) : image_(std::move(image)) {}
  std::span<const std::byte> bytes() const override { return image_.bundle(); }

 private:
  const RequestedImage image_;
};

RequestedImage take_image(Code& code, Command& command, Kind kind) {
  RequestedImage wanted;
  wanted.body = command.body.get<wire::LoadImage>();
  if (wanted.body.upload == 0) wanted.name = command.body.get<wire::ImageName>();
  const size_t bytes = command.body.remaining(), count = bytes / sizeof(wire::JitOption);
  wanted.malformed = !command.body.ok() || cuda::kind_of(wanted.body.handle) != kind ||
                     count > wire::kMaxJitOptions || bytes % sizeof(wire::JitOption) != 0;
  if (wanted.malformed) return wanted;
  wanted.options.resize(count);
  if (count != 0) std::memcpy(wanted.options.data(), command.body.get_bytes(bytes).data(), bytes);
  // The values of other options are pointers.
  wanted.malformed = !std::all_of(wanted.options.begin(), wanted.options.end(), [](const auto& option) {
    return wire::is_numeric_jit_option(option.option);
  });
  if (wanted.malformed) return wanted;
  if (wanted.name) {
    if (auto cached = code.cached_images.take(*wanted.name)) wanted.cached.emplace(std::move(*cached));
  } else {
    wanted.uploaded = code.uploads.take(wanted.body.upload);
  }
  return wanted;
}

Outcome image_missing(const RequestedImage& wanted) {
  return wanted.name ? static_cast<CUresult>(wire::kImageMissing) : CUDA_ERROR_INVALID_IMAGE;
}

Outcome finish_load(Session& session, RequestedImage&& wanted, Kind kind, const Images::Loaded& loaded) {
  if (loaded.result == CUDA_SUCCESS) {
    session.table.bind(kind, wanted.body.handle, loaded.object);
    if (wanted.uploaded) session.code.cached_images.deposit(wanted.bundle());
    if (session.history.on()) session.history.keep_image(std::make_shared<RequestedBytes>(std::move(wanted)));
  } else if (loaded.admitted) {
    session.memory_charges.forget_image(wanted.body.handle);
  }
  session.capture.expect_output();
  if (session.table.broken()) return Outcome::malformed("an invalid new handle");
  wire::Writer writer(session.replies.body);
  writer.put_text(loaded.log);
  writer.put(loaded.milliseconds);
  if (!loaded.info.empty()) writer.put_text(loaded.info);
  return loaded.result;
}

}  // namespace

Outcome upload_part(Session& session, Command& command) {
  const auto body = command.body.get<wire::UploadPart>();
  const auto part = command.body.get_bytes(command.body.remaining());
  if (!command.body.finished() || cuda::kind_of(body.upload) != Kind::upload) return bad_body();
  switch (session.code.uploads.add(body.upload, body.total, part)) {
    case Uploads::Added::ok: return CUDA_SUCCESS;
    case Uploads::Added::too_much: return CUDA_ERROR_OUT_OF_MEMORY;
    case Uploads::Added::malformed: break;
  }
  return Outcome::malformed("the parts of an upload have inconsistent sizes");
}

bool may_load(const Session& session) {
  return session.start.usage.allows(quota::KindId::modules, &quota::Account::modules,
                                    session.counters.modules.load(std::memory_order_relaxed));
}

Outcome load_module(Session& session, Command& command) {
  RequestedImage wanted = take_image(session.code, command, Kind::module);
  if (wanted.malformed) return bad_body();
  if (!may_load(session)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!session.contexts.enter_named(command.header.context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!wanted.available()) return image_missing(wanted);
  const uint64_t handle = wanted.body.handle;
  const auto loaded = session.code.images.load_module(
      handle, device_of(session.contexts), wanted.bundle(), wanted.options,
      [&](const cuda::Image& image) { return session.memory_charges.add_module(handle, image); });
  return finish_load(session, std::move(wanted), Kind::module, loaded);
}

Outcome load_library(Session& session, Command& command) {
  RequestedImage wanted = take_image(session.code, command, Kind::library);
  if (wanted.malformed) return bad_body();
  if (!may_load(session)) return CUDA_ERROR_OUT_OF_MEMORY;
  session.contexts.enter_named(command.header.context);
  if (!wanted.available()) return image_missing(wanted);
  const uint64_t handle = wanted.body.handle;
  const auto loaded = session.code.images.load_library(
      handle, device_of(session.contexts), wanted.bundle(), wanted.options,
      [&](const cuda::Image& image) { return session.memory_charges.add_library(handle, image); });
  return finish_load(session, std::move(wanted), Kind::library, loaded);
}

Outcome get_function(Session& session, Command& command) {
  wire::GetFunction body;
  std::string name;
  if (!with_text(command, body, name) || cuda::kind_of(body.handle) != Kind::function) return bad_body();
  if (!session.contexts.enter_named(command.header.context)) return CUDA_ERROR_INVALID_CONTEXT;
  const auto module = session.table.resolve(Kind::module, body.owner);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  CUfunction function = nullptr;
  const CUresult result =
      session.api.cuModuleGetFunction(&function, static_cast<CUmodule>(*module), name.c_str());
  if (result != CUDA_SUCCESS) return result;
  session.table.bind_owned(Kind::function, body.handle, function, body.owner);
  if (session.table.broken()) return Outcome::malformed("an invalid new handle");
  wire::FunctionInfo info{};
  for (uint32_t i = 0; i < wire::kFunctionAttributes; ++i) {
    int value = 0;
    if (session.api.cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(i), function) ==
        CUDA_SUCCESS) {
      info.attributes[i] = value;
    }
  }
  auto parameters =
      parameters_of(session.code.images, body.owner, name, [&](size_t index, size_t* offset, size_t* size) {
#if CUDA_VERSION >= 12040
        if (session.api.cuFuncGetParamInfo)
          return session.api.cuFuncGetParamInfo(function, index, offset, size);
#endif
        return CUDA_ERROR_NOT_SUPPORTED;
      });
  return describe(session.replies, info, parameters);
}

#if CUDA_VERSION >= 12000

Outcome get_kernel(Session& session, Command& command) {
  wire::GetFunction body;
  std::string name;
  if (!with_text(command, body, name) || cuda::kind_of(body.handle) != Kind::kernel) return bad_body();
  session.contexts.enter_named(command.header.context);
  const auto library = session.table.resolve(Kind::library, body.owner);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  if (!session.api.cuLibraryGetKernel) return CUDA_ERROR_NOT_SUPPORTED;
  CUkernel kernel = nullptr;
  const CUresult result =
      session.api.cuLibraryGetKernel(&kernel, static_cast<CUlibrary>(*library), name.c_str());
  if (result != CUDA_SUCCESS) return result;
  session.table.bind_owned(Kind::kernel, body.handle, kernel, body.owner);
  if (session.table.broken()) return Outcome::malformed("an invalid new handle");
  wire::FunctionInfo info{};
  for (uint32_t i = 0; i < wire::kFunctionAttributes && session.api.cuKernelGetAttribute; ++i) {
    int value = 0;
    if (session.api.cuKernelGetAttribute(&value, static_cast<CUfunction_attribute>(i), kernel,
                                         device_of(session.contexts)) == CUDA_SUCCESS) {
      info.attributes[i] = value;
    }
  }
  auto parameters =
      parameters_of(session.code.images, body.owner, name, [&](size_t index, size_t* offset, size_t* size) {
#if CUDA_VERSION >= 12040
        if (session.api.cuKernelGetParamInfo)
          return session.api.cuKernelGetParamInfo(kernel, index, offset, size);
#endif
        return CUDA_ERROR_NOT_SUPPORTED;
      });
  return describe(session.replies, info, parameters);
}

Outcome kernel_function(Session& session, Command& command) {
  const auto body = read_exact_body<wire::KernelFunction>(command);
  if (!body || cuda::kind_of(body->handle) != Kind::function) return bad_body();
  if (!session.contexts.enter_named(command.header.context)) return CUDA_ERROR_INVALID_CONTEXT;
  const auto kernel = session.table.resolve(Kind::kernel, body->kernel);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!session.api.cuKernelGetFunction) return CUDA_ERROR_NOT_SUPPORTED;
  CUfunction function = nullptr;
  const CUresult result = session.api.cuKernelGetFunction(&function, static_cast<CUkernel>(*kernel));
  if (result != CUDA_SUCCESS) return result;
  session.table.bind_owned(Kind::function, body->handle, function, session.table.owner_of(body->kernel));
  if (session.table.broken()) return Outcome::malformed("an invalid new handle");
  return CUDA_SUCCESS;
}

#else

Outcome get_kernel(Session&, Command&) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
Outcome kernel_function(Session&, Command&) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

#endif

Outcome kernel_names(Session& session, Command& command) {
  const auto body = read_exact_body<wire::GetKernelNames>(command);
  if (!body) return bad_body();
  session.contexts.enter_named(command.header.context);
#if CUDA_VERSION >= 12040
  std::vector<const char*> names;
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  if (const auto module = session.table.resolve(Kind::module, body->owner)) {
    if (!session.contexts.current()) return CUDA_ERROR_INVALID_CONTEXT;
    result = all_names(static_cast<CUmodule>(*module), session.api.cuModuleGetFunctionCount,
                       session.api.cuModuleEnumerateFunctions, session.api.cuFuncGetName, names);
  } else if (const auto library = session.table.resolve(Kind::library, body->owner)) {
    result = all_names(static_cast<CUlibrary>(*library), session.api.cuLibraryGetKernelCount,
                       session.api.cuLibraryEnumerateKernels, session.api.cuKernelGetName, names);
  }
  if (result != CUDA_SUCCESS) return result;
  wire::Writer writer(session.replies.body);
  writer.put(wire::KernelNames{names.size()});
  for (size_t i = body->first, bytes = 0; i < names.size(); ++i) {
    const size_t size = std::strlen(names[i]) + 1;
    if (size > wire::kMaxNamesBytes) return CUDA_ERROR_INVALID_IMAGE;
    if ((bytes += size) > wire::kMaxNamesBytes) break;
    writer.put_bytes(names[i], size);
  }
  return CUDA_SUCCESS;
#else
  return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

Outcome get_global(Session& session, Command& command) {
  wire::GetGlobal body;
  std::string name;
  if (!with_text(command, body, name)) return bad_body();
  ContextState* const context = session.contexts.enter_named(command.header.context);
  CUdeviceptr address = 0;
  size_t size = 0;
  bool managed = false;
  CUresult result = CUDA_ERROR_INVALID_CONTEXT;
  if (!context) {
#if CUDA_VERSION >= 12000
    const auto library = session.table.resolve(Kind::library, body.owner);
    managed = command.header.context == 0 && library && session.api.cuLibraryGetManaged;
    if (managed)
      result =
          session.api.cuLibraryGetManaged(&address, &size, static_cast<CUlibrary>(*library), name.c_str());
#endif
  } else {
    Variable found;
    result = find_variable(session, body.owner, name, &found);
    address = found.address;
    size = found.size;
  }
  if (result != CUDA_SUCCESS) return result;
  if (!session.memory.add_variable(body.owner, address, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (int of_host = 0; !managed && session.api.cuPointerGetAttribute) {
    managed = session.api.cuPointerGetAttribute(&of_host, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) ==
                  CUDA_SUCCESS &&
              of_host != 0;
  }
  wire::Writer(session.replies.body).put(wire::GlobalInfo{address, size, managed ? 1u : 0u, 0});
  return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::commands
