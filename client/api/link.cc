// Linking. The linker is on the server: inputs are sent as they are added, and the result is fetched once.
#include "client/session/module.h"
#include "protocol/driver/exports.h"
#include "protocol/images/fatbin.h"
#include "protocol/wire/images.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

struct Linker : Object {
  std::mutex mutex;    // guards the members below
  JitOptions options;  // the program keeps their buffers valid until the linker is destroyed
  std::vector<std::byte> image;
};

struct At {
  Linker* linker = nullptr;
  Context* context = nullptr;
};

CUresult find(CUlinkState state, At* at) {
  Session* session = nullptr;
  if (const CUresult result = require_context(&session, &at->context); result != CUDA_SUCCESS) return result;
  at->linker = handles().find_as<Linker>(Kind::linker, cuda::handle_bits(state));
  if (!at->linker) return CUDA_ERROR_INVALID_HANDLE;
  CallTarget target{session, at->context};
  redirect(*at->linker, target);
  at->context = target.context;
  return at->context ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void put_options(wire::Writer& writer, const std::vector<wire::JitOption>& options) {
  writer.put_bytes(options.data(), options.size() * sizeof(wire::JitOption));
}

CUresult create(const JitOptions& options, CUlinkState* state) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    std::vector<wire::JitOption> numeric;
    if (const CUresult result = options.to_send(&numeric); result != CUDA_SUCCESS) return result;
    auto linker = std::make_unique<Linker>();
    linker->context = context->owner().handle;
    linker->options = options;
    const uint64_t handle = session->mint(Kind::linker, std::move(linker));
    if (handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    wire::Buffer reply;
    const CUresult result = session->call(
        static_cast<uint16_t>(wire::Command::create_linker), context,
        [&](wire::Writer& writer) {
          writer.put(wire::CreateLinker{handle, numeric.size()});
          put_options(writer, numeric);
        },
        reply);
    if (result != CUDA_SUCCESS)
      handles().retire(handle);
    else
      *state = cuda::handle_from_bits<CUlinkState>(handle);
    return result;
  });
}

// `log`: both of the server's logs in one text. Call with the linker's mutex held.
void deliver(const std::string& log, CUresult result, const Linker& linker) {
  const bool failed = result != CUDA_SUCCESS;
  deliver_logs({.error = failed ? log : "", .info = failed ? "" : log}, result, linker.options);
}

CUresult add(CUlinkState state, CUjitInputType type, const void* data, size_t size, const char* name,
             const JitOptions& options) {
  return guarded([&]() -> CUresult {
    At at;
    if (const CUresult result = find(state, &at); result != CUDA_SUCCESS) return result;
    // PTX ends at its NUL, which the server appends again.
    if (data && type == CU_JIT_INPUT_PTX) size = ::strnlen(static_cast<const char*>(data), size);
    if (!data || size == 0 || size > cuda::kMaxImageBytes) return CUDA_ERROR_INVALID_VALUE;
    std::vector<wire::JitOption> numeric;
    if (const CUresult result = options.to_send(&numeric); result != CUDA_SUCCESS) return result;
    Session& session = *at.linker->session;
    uint64_t upload = 0;
    CUresult result = upload_image(session, {static_cast<const std::byte*>(data), size}, &upload);
    if (result != CUDA_SUCCESS) return result;
    wire::Buffer reply;
    result = session.call(
        static_cast<uint16_t>(wire::Command::add_link_input), at.context,
        [&](wire::Writer& writer) {
          writer.put(wire::AddLinkInput{at.linker->handle, upload, static_cast<uint32_t>(type),
                                        static_cast<uint32_t>(numeric.size())});
          put_options(writer, numeric);
          writer.put_text(name ? std::string_view(name, ::strnlen(name, wire::kMaxTextBytes))
                               : std::string_view());
        },
        reply);
    wire::Reader reader(reply);
    std::lock_guard lock(at.linker->mutex);
    deliver(std::string(reader.get_text()), result, *at.linker);
    return result;
  });
}

CUresult add_file(CUlinkState state, CUjitInputType type, const char* path, const JitOptions& options) {
  return guarded([&]() -> CUresult {
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    std::string content;
    if (const CUresult result = read_file(path, &content); result != CUDA_SUCCESS) return result;
    return add(state, type, content.data(), content.size() - (type == CU_JIT_INPUT_PTX ? 0 : 1), path,
               options);
  });
}

CUresult complete(const At& at) {
  Session& session = *at.linker->session;
  wire::Buffer reply;
  const CUresult result =
      session.call(wire::Command::complete_link, at.context, wire::CompleteLink{at.linker->handle}, reply);
  wire::Reader reader(reply);
  const uint64_t size = reader.get<wire::LinkedImage>().size;
  deliver(std::string(reader.get_text()), result, *at.linker);
  if (result != CUDA_SUCCESS) return result;
  if (!reader.finished() || size > cuda::kMaxImageBytes) {
    session.fail({ErrorCode::malformed, "protocol error: malformed reply to complete_link"});
    return Session::failure();
  }
  std::vector<std::byte> image;
  while (image.size() < size) {
    wire::Buffer part;
    const CUresult got = session.call(wire::Command::linked_image, at.context,
                                      wire::GetLinkedImage{at.linker->handle, image.size()}, part);
    if (got != CUDA_SUCCESS) return got;
    if (part.empty() || part.size() > size - image.size()) {
      session.fail({ErrorCode::malformed, "protocol error: a part of the linked image has the wrong size"});
      return Session::failure();
    }
    image.insert(image.end(), part.begin(), part.end());
  }
  at.linker->image = std::move(image);
  return CUDA_SUCCESS;
}

}  // namespace

CUDA_EXPORT CUresult cuLinkCreate_v2(unsigned int count, CUjit_option* options, void** values,
                                     CUlinkState* state) {
  return create({count, options, values}, state);
}

CUDA_EXPORT CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size,
                                      const char* name, unsigned int count, CUjit_option* options,
                                      void** values) {
  return add(state, type, data, size, name, {count, options, values});
}

CUDA_EXPORT CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path,
                                      unsigned int count, CUjit_option* options, void** values) {
  return add_file(state, type, path, {count, options, values});
}

CUDA_EXPORT CUresult cuLinkComplete(CUlinkState state, void** image, size_t* size) {
  return guarded([&]() -> CUresult {
    At at;
    if (const CUresult result = find(state, &at); result != CUDA_SUCCESS) return result;
    if (!image) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(at.linker->mutex);
    if (at.linker->image.empty()) {
      if (const CUresult result = complete(at); result != CUDA_SUCCESS) return result;
    }
    *image = at.linker->image.data();
    if (size) *size = at.linker->image.size();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuLinkDestroy(CUlinkState state) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    auto* linker = handles().find_as<Linker>(Kind::linker, cuda::handle_bits(state));
    if (!linker) return CUDA_ERROR_INVALID_HANDLE;
    (void)linker->session->post(wire::Command::destroy_linker, nullptr, wire::DestroyLinker{linker->handle});
    handles().retire(linker->handle);
    return CUDA_SUCCESS;
  });
}
