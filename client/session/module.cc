#include "client/session/module.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "client/memory/mirrors.h"
#include "client/process/log.h"
#include "client/session/replies.h"
#include "protocol/images/fatbin.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/images.h"

namespace gpupool::client {
namespace {

// Asks the server to load an image that it keeps, by name. False: the server does not have it, or keeps no
// images.
bool load_by_name(Session& session, Context* context, wire::Command command, uint64_t handle,
                  cuda::ByteSpan bundle, const std::vector<wire::JitOption>& options, wire::Buffer& reply,
                  CUresult* result) {
  const auto nonce = session.image_nonce(bundle.size());
  if (!nonce) return false;
  const wire::ImageName name = image::name(*nonce, bundle);
  *result = session.call(
      static_cast<uint16_t>(command), context,
      [&](wire::Writer& writer) {
        writer.put(wire::LoadImage{handle, 0});
        writer.put(name);
        writer.put_bytes(options.data(), options.size() * sizeof(wire::JitOption));
      },
      reply);
  return !reply.empty() || static_cast<int>(*result) != wire::kImageMissing;
}

// Returns the compute capabilities of the session's devices. Empty: unknown, or the program chose the target
// of compilation (CU_JIT_TARGET).
std::vector<cuda::CodeTarget> targets_of(const Session& session,
                                         const std::vector<wire::JitOption>& options) {
  if (std::any_of(options.begin(), options.end(),
                  [](const wire::JitOption& option) { return option.option == CU_JIT_TARGET; }))
    return {};
  std::vector<cuda::CodeTarget> targets;
  for (const auto& device : devices()) {
    if (device->session != &session) continue;
    const auto& attributes = device->attributes;
    const auto major = attributes.find(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
               minor = attributes.find(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    if (major == attributes.end() || minor == attributes.end()) return {};
    targets.push_back({major->second, minor->second, false});
  }
  return targets;
}

// Loads an image on the server, without code that its devices cannot run; uploads it if necessary.
CUresult load_image(Session& session, Context* context, Kind kind, uint64_t handle, cuda::ImageSpans spans,
                    const std::vector<wire::JitOption>& options, wire::Buffer& reply) {
  const auto command = kind == Kind::module ? wire::Command::load_module : wire::Command::load_library;
  cuda::Bytes kept, bundle;
  CUresult result = cuda::keep_runnable(targets_of(session, options), spans, kept);
  if (result == CUDA_SUCCESS) result = cuda::bundle(spans, bundle);
  if (result != CUDA_SUCCESS) return result;
  if (load_by_name(session, context, command, handle, bundle.view(), options, reply, &result)) return result;
  uint64_t upload = 0;
  result = upload_image(session, bundle.view(), &upload);
  if (result != CUDA_SUCCESS) return result;
  return session.call(
      static_cast<uint16_t>(command), context,
      [&](wire::Writer& writer) {
        writer.put(wire::LoadImage{handle, upload});
        writer.put_bytes(options.data(), options.size() * sizeof(wire::JitOption));
      },
      reply);
}

// Stores the time for CU_JIT_WALL_TIME.
void deliver_time(float milliseconds, const JitOptions& jit) {
  if (void** const time = jit.find(CU_JIT_WALL_TIME)) std::memcpy(time, &milliseconds, sizeof milliseconds);
}

// Reads the reply to load_module or load_library, which is empty if the command failed early.
JitReport read_report(wire::Reader& reader, const JitOptions& jit) {
  JitReport report;
  report.error = reader.get_text();
  if (const auto milliseconds = reader.get<float>(); reader.ok()) deliver_time(milliseconds, jit);
  if (reader.remaining() != 0) report.info = reader.get_text();
  return report;
}

// Copies a look-up's reply into the function; false: the reply is malformed.
bool take_description(const wire::Buffer& reply, Function& function) {
  KernelDescription description;
  if (!read_kernel_description(reply, &description)) return false;
  function.parameters = std::move(description.parameters);
  function.parameter_bytes = description.parameter_bytes;
  for (uint32_t i = 0; i < wire::kFunctionAttributes; ++i) function.attributes[i] = description.attributes[i];
  return true;
}

// A device loads a fat binary without code for it as a library, and fails the calls that need the code. Logs
// the reason at the first one.
CUresult log_no_code(Code& code, CUresult result) {
  if (result != CUDA_ERROR_NO_BINARY_FOR_GPU) return result;
  if (const std::string why = std::exchange(code.log, {}); !why.empty())
    log_error("cannot load a module: %s", why.c_str());
  return result;
}

// Returns another session whose device memory includes some of these addresses; null: none.
const Session* owner_of(const Session& asked, uint64_t address, uint64_t bytes) {
  const auto found = std::find_if(sessions().begin(), sessions().end(), [&](const auto& session) {
    return session.get() != &asked && session->addresses().overlaps(address, bytes);
  });
  return found == sessions().end() ? nullptr : found->get();
}

// Returns any of the session's devices.
Device* session_device(const Session& session) {
  const auto found = std::find_if(devices().begin(), devices().end(),
                                  [&](const auto& device) { return device->session == &session; });
  return found == devices().end() ? nullptr : found->get();
}

}  // namespace

Function* find_function(CUfunction function) {
  const uint64_t handle = cuda::handle_bits(function);
  if (auto* found = handles().find_as<Function>(Kind::function, handle)) return found;
  return handles().find_as<Function>(Kind::kernel, handle);
}

CUresult upload_image(Session& session, cuda::ByteSpan all, uint64_t* upload) {
  *upload = session.mint(Kind::upload, nullptr);
  handles().retire(*upload);  // only the number is needed; its generation makes it unique
  for (size_t at = 0; at < all.size(); at += wire::kBulkChunkBytes) {
    const auto part = all.subspan(at, std::min<size_t>(wire::kBulkChunkBytes, all.size() - at));
    const iovec payload{const_cast<std::byte*>(part.data()), part.size()};
    const wire::UploadPart head{*upload, all.size()};
    if (!session.queue().send_bulk(static_cast<uint16_t>(wire::Command::upload_part), 0, 0, head,
                                   {&payload, 1}, [](uint64_t) {})) {
      return Session::failure();
    }
  }
  return CUDA_SUCCESS;
}

JitOptions::JitOptions(unsigned count, CUjit_option* options, void** values)
    : cuda::JitOptionList{count, options, values}, logs(*this) {}

CUresult JitOptions::to_send(std::vector<wire::JitOption>* numeric) const {
  static_assert(kMaxOptions <= wire::kMaxJitOptions);
  if (const CUresult result = cuda::check_jit_options(*this, logs); result != CUDA_SUCCESS) return result;
  for (unsigned i = 0; i < count; ++i) {
    const auto option = static_cast<uint32_t>(options[i]);
    if (wire::is_numeric_jit_option(option))
      numeric->push_back({option, 0, reinterpret_cast<uintptr_t>(values[i])});
  }
  return CUDA_SUCCESS;
}

void deliver_logs(const JitReport& report, CUresult result, const JitOptions& jit) {
  jit.logs.error.write(report.error);
  jit.logs.info.write(report.info);
  const std::string& why = report.error.empty() ? report.info : report.error;
  if (result != CUDA_SUCCESS && !why.empty()) log_error("cannot load a module: %s", why.c_str());
}

CUresult load(Session& session, Context* context, Kind kind, const void* image, const JitOptions& jit,
              uint64_t* handle) {
  if (const CUresult early = session.before_call(context); early != CUDA_SUCCESS) return early;
  std::vector<wire::JitOption> options;
  if (const CUresult result = jit.to_send(&options); result != CUDA_SUCCESS) return result;
  cuda::ImageSpans spans;
  if (const CUresult result = cuda::locate_image(image, spans); result != CUDA_SUCCESS) return result;
  auto made = std::make_unique<Code>();
  Code* const code = made.get();
  code->context = context ? context->owner().handle : 0;
  if (kind == Kind::library && sessions().size() > 1) {
    cuda::Bytes bundle;  // all code: other servers may have other devices
    if (const CUresult result = cuda::bundle(spans, bundle); result != CUDA_SUCCESS) return result;
    code->bundle.assign(bundle.view().begin(), bundle.view().end());
    code->options = options;
  }
  *handle = session.mint(kind, std::move(made));
  if (*handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::Buffer reply;
  const CUresult result = load_image(session, context, kind, *handle, spans, options, reply);
  wire::Reader reader(reply);
  const JitReport report = read_report(reader, jit);
  code->log = report.error.empty() ? report.info : report.error;
  deliver_logs(report, result, jit);
  if (result != CUDA_SUCCESS) handles().retire(*handle);
  return result;
}

CUresult look_up(Session& session, Context* context, Kind owner_kind, Kind kind, uint64_t owner,
                 const char* name, uint64_t* handle) {
  auto* code = handles().find_as<Code>(owner_kind, owner);
  if (!code) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = code->ensure_loaded(session); result != CUDA_SUCCESS) return result;
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
  if (result == CUDA_SUCCESS && !take_description(reply, function)) {
    session.fail({ErrorCode::malformed, "protocol error: malformed kernel description"});
    result = Session::failure();
  }
  if (result != CUDA_SUCCESS) return handles().retire(*handle), log_no_code(*code, result);
  code->functions.emplace(name, *handle);
  if (timeline::on()) timeline::name_kernel(*handle, name);
  return CUDA_SUCCESS;
}

CUresult function_of_kernel(Session& session, Context* context, uint64_t given, uint64_t* made) {
  auto* kernel = handles().find_as<Function>(Kind::kernel, given);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = kernel->ensure_loaded(session); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(kernel->mutex);
  Context& owner = context->owner();
  uint64_t& handle = kernel->functions[{owner.handle, owner.epoch.load()}];
  if (handle == 0 || !handles().find(Kind::function, handle)) {
    auto function = std::make_unique<Function>();
    function->name = kernel->name;
    function->owner = kernel->owner;
    function->context = owner.handle;
    function->kernel = kernel->handle;
    function->parameters = kernel->parameters;
    function->parameter_bytes = kernel->parameter_bytes;
    for (uint32_t i = 0; i < wire::kFunctionAttributes; ++i)
      function->attributes[i] = kernel->attributes[i].load();
    for (const auto& [where, value] : kernel->set_for) {
      if (where.first == owner.device->ordinal) function->attributes[where.second] = value;
    }
    handle = session.mint(Kind::function, std::move(function));
    const CUresult result =
        session.post(wire::Command::kernel_function, context, wire::KernelFunction{handle, kernel->handle});
    if (result != CUDA_SUCCESS) {
      handles().retire(handle);
      handle = 0;
      return result;
    }
  }
  if (timeline::on()) timeline::name_kernel(handle, kernel->name);
  *made = handle;
  return CUDA_SUCCESS;
}

CUresult resolve_function(Session* session, Context* context, Function** function) {
  if (!context || !(*function)->attributes_vary.load(std::memory_order_acquire)) [[likely]]
    return CUDA_SUCCESS;
  uint64_t handle = 0;
  if (const CUresult result = function_of_kernel(*session, context, (*function)->handle, &handle);
      result != CUDA_SUCCESS)
    return result;
  *function = handles().find_as<Function>(Kind::function, handle);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult kernel_names(Session& session, Context* context, Kind owner_kind, uint64_t owner,
                      const std::vector<std::string>** names) {
  auto* code = handles().find_as<Code>(owner_kind, owner);
  if (!code) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = code->ensure_loaded(session); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(code->mutex);
  std::vector<std::string> all;
  while (!code->names) {
    wire::Buffer reply;
    const CUresult result =
        session.call(wire::Command::kernel_names, context, wire::GetKernelNames{owner, all.size()}, reply);
    if (result != CUDA_SUCCESS) return log_no_code(*code, result);
    bool complete = false;
    if (!read_kernel_names(reply, &all, &complete)) {
      session.fail({ErrorCode::malformed, "protocol error: malformed list of kernels"});
      return Session::failure();
    }
    if (complete) {
      code->names = std::move(all);
      break;
    }
  }
  *names = &*code->names;
  return CUDA_SUCCESS;
}

CUresult get_global(Session& session, Context* context, Kind owner_kind, uint64_t owner, const char* name,
                    CUdeviceptr* address, size_t* bytes, bool* managed) {
  auto* code = handles().find_as<Code>(owner_kind, owner);
  if (!code) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = code->ensure_loaded(session); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(code->mutex);
  auto& globals = code->globals[{Session::handle_of(context), context ? context->epoch.load() : 0}];
  auto known = globals.find(name);
  if (known == globals.end()) {
    wire::Buffer reply;
    const CUresult result =
        session.call(wire::Command::get_global, context, name, reply, wire::GetGlobal{owner});
    if (result != CUDA_SUCCESS) return log_no_code(*code, result);
    wire::GlobalInfo info;
    if (!read_global(reply, &info)) {
      session.fail({ErrorCode::malformed, "protocol error: malformed description of a variable"});
      return Session::failure();
    }
    // The driver chose the address without knowledge of other servers: if another session has memory there,
    // copies could not tell the two apart.
    if (const Session* const other = owner_of(session, info.address, info.size)) {
      log_error(
          "cannot use variable '%s': server %s placed it at 0x%llx, where this program has device memory of "
          "server %s; restart the program, "
          "or use one server",
          name, session.server().c_str(), static_cast<unsigned long long>(info.address),
          other->server().c_str());
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    Allocation about;
    about.address = info.address;
    about.size = info.size;
    about.context = Session::handle_of(context);
    about.device = context ? context->device : session_device(session);
    about.managed = info.managed != 0;
    session.addresses().add_foreign(about);
    if (about.managed) {
      if (const CUresult made = mirrors().add_variable(session, context, info.address, info.size);
          made != CUDA_SUCCESS)
        return made;
    }
    known = globals.emplace(name, info).first;
  }
  if (address) *address = known->second.address;
  if (bytes) *bytes = known->second.size;
  if (managed) *managed = known->second.managed != 0;
  return CUDA_SUCCESS;
}

void Code::forget_globals() {
  std::lock_guard lock(mutex);
  for (const auto& [context, variables] : globals) {
    for (const auto& [name, info] : variables) {
      for (const auto& session : sessions()) session->addresses().forget_foreign(info.address);
    }
  }
  globals.clear();
}

CUresult Code::ensure_loaded(Session& other) {
  const uint64_t bit = uint64_t{1} << other.index();
  if (session == &other || loaded_sessions.load(std::memory_order_acquire) & bit) return CUDA_SUCCESS;
  if (cuda::kind_of(handle) != Kind::library) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(mutex);
  if (loaded_sessions.load() & bit) return CUDA_SUCCESS;
  wire::Buffer reply;
  cuda::Bundle whole;
  CUresult result = whole.parse(bundle);
  if (result == CUDA_SUCCESS)
    result = load_image(other, nullptr, Kind::library, handle, whole.spans(), options, reply);
  wire::Reader reader(reply);
  const JitReport report = read_report(reader, {});
  log = report.error.empty() ? report.info : report.error;
  deliver_logs(report, result, {});
  if (result == CUDA_SUCCESS) loaded_sessions.fetch_or(bit);
  return result;
}

CUresult Function::ensure_loaded(Session& other) {
  const uint64_t bit = uint64_t{1} << other.index();
  if (session == &other || loaded_sessions.load(std::memory_order_acquire) & bit) return CUDA_SUCCESS;
  auto* const library = handles().find_as<Code>(Kind::library, owner);
  if (cuda::kind_of(handle) != Kind::kernel || !library) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = library->ensure_loaded(other); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(mutex);
  if (loaded_sessions.load() & bit) return CUDA_SUCCESS;
  // Its parameters are the same on every server. Its attributes may differ, and are queried per device
  // (cuKernelGetAttribute).
  wire::Buffer reply;
  const CUresult result =
      other.call(wire::Command::get_kernel, nullptr, name, reply, wire::GetFunction{handle, owner});
  if (result == CUDA_SUCCESS) loaded_sessions.fetch_or(bit);
  return result;
}

CUresult read_file(const char* path, std::string* content) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  content->assign(std::istreambuf_iterator<char>(file), {});
  content->push_back('\0');
  return CUDA_SUCCESS;
}

}  // namespace gpupool::client
