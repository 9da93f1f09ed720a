// Handlers for linking (linkers.h).
#include "protocol/wire/images.h"
#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {
namespace {

using cuda::Kind;

// Returns nullopt if the options exceed the body or are not numeric.
std::optional<std::vector<wire::JitOption>> read_options(wire::Reader& body, uint64_t count) {
  if (count > wire::kMaxJitOptions) return std::nullopt;
  std::vector<wire::JitOption> options(count);
  for (wire::JitOption& option : options) {
    option = body.get<wire::JitOption>();
    if (!wire::is_numeric_jit_option(option.option)) return std::nullopt;
  }
  return body.ok() ? std::optional(std::move(options)) : std::nullopt;
}

// An input for a migration.
class LinkInput final : public KeptImage {
 public:
  explicit LinkInput(std::vector<std::byte>&& uploaded) : uploaded_(std::move(uploaded)) {}
  std::span<const std::byte> bytes() const override {
    return std::span<const std::byte>(uploaded_).first(uploaded_.size() - 1);
  }

 private:
  const std::vector<std::byte> uploaded_;  // and a NUL
};

// Makes the linker's context current. Returns false if there is no such linker.
bool enter_linker(Contexts& contexts, const Linkers& linkers, uint64_t linker) {
  const ContextState* const context = linkers.context_of(linker);
  if (context) contexts.enter(const_cast<ContextState*>(context));
  return context != nullptr;
}

}  // namespace

Outcome create_linker(Session& session, Command& command) {
  const auto body = command.body.get<wire::CreateLinker>();
  const auto options = read_options(command.body, body.option_count);
  if (!options || !command.body.finished() || cuda::kind_of(body.linker) != Kind::linker) return bad_body();
  ContextState* const context = session.contexts.enter_named(command.header.context);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  return session.code.linkers.create(body.linker, context->owner(), *options);
}

Outcome add_link_input(Session& session, Command& command) {
  const auto body = command.body.get<wire::AddLinkInput>();
  const auto options = read_options(command.body, body.option_count);
  const std::string name(command.body.get_text());
  if (!options || !command.body.finished()) return bad_body();
  auto uploaded = session.code.uploads.take(body.upload);
  if (!enter_linker(session.contexts, session.code.linkers, body.linker)) return CUDA_ERROR_INVALID_HANDLE;
  if (!uploaded) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto bytes = std::span<const std::byte>(*uploaded).first(uploaded->size() - 1);
  const auto type = static_cast<CUjitInputType>(body.type);
  if (type == CU_JIT_INPUT_FATBINARY || type == CU_JIT_INPUT_CUBIN) {
    // The driver trusts the sizes in an image's headers, so check them first.
    std::vector<cuda::ImageEntry> entries;
    if (const CUresult result = cuda::parse_image(bytes, entries); result != CUDA_SUCCESS) return result;
  }
  std::string log;
  const CUresult result = session.code.linkers.add(body.linker, type, bytes, name, *options, log);
  wire::Writer(session.replies.body).put_text(log);
  if (result == CUDA_SUCCESS && session.history.on())
    session.history.keep_image(std::make_shared<LinkInput>(std::move(*uploaded)));
  return result;
}

Outcome complete_link(Session& session, Command& command) {
  const auto body = read_exact_body<wire::CompleteLink>(command);
  if (!body) return bad_body();
  if (!enter_linker(session.contexts, session.code.linkers, body->linker)) return CUDA_ERROR_INVALID_HANDLE;
  wire::LinkedImage made{};
  std::string log;
  const CUresult result = session.code.linkers.complete(body->linker, &made.size, log);
  wire::Writer writer(session.replies.body);
  writer.put(made);
  writer.put_text(log);
  return result;
}

Outcome linked_image(Session& session, Command& command) {
  const auto body = read_exact_body<wire::GetLinkedImage>(command);
  if (!body) return bad_body();
  const auto part = session.code.linkers.image(body->linker, body->offset);
  wire::Writer(session.replies.body).put_bytes(part.data(), part.size());
  return part.empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

Outcome destroy_linker(Session& session, Command& command) {
  const auto body = read_exact_body<wire::DestroyLinker>(command);
  if (!body) return bad_body();
  if (!enter_linker(session.contexts, session.code.linkers, body->linker))
    return CUDA_SUCCESS;  // destroyed with its context
  return session.code.linkers.destroy(body->linker);
}

}  // namespace gpupool::worker::commands
