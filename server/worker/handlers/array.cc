// Handlers for destroying arrays, getting their parts, and texture references.
#include "protocol/wire/commands.h"
#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {

using cuda::Kind;

Outcome destroy_array(Session& session, Command& command) {
  const auto body = read_exact_body<wire::DestroyArray>(command);
  if (!body) return bad_body();
  session.contexts.enter_named(command.header.context);
  const Kind kind = cuda::kind_of(body->array);
  if (kind != Kind::array && kind != Kind::mipmapped_array) return CUDA_ERROR_INVALID_HANDLE;
  const auto array = session.table.resolve(kind, body->array);
  if (!array || session.table.owner_of(body->array) != 0) return CUDA_ERROR_INVALID_HANDLE;
  const bool wants_reply = command.wants_reply();
  const CUresult deferred = wants_reply ? session.replies.take_deferred() : CUDA_SUCCESS;
  const bool begun = session.arrays.destroy(
      *array, [&session, wants_reply, deferred, sequence = command.header.sequence](CUresult result) {
        if (wants_reply) session.replies.answer(sequence, result == CUDA_SUCCESS ? deferred : result);
      });
  if (!begun) {
    session.replies.defer(deferred);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  session.table.unbind(body->array);
  // Parked commands are not noted by the executor.
  session.history.note(command.header, std::as_bytes(std::span(&*body, 1)), {}, {.destroys = {body->array}});
  return Outcome::parked();
}

Outcome array_part(Session& session, Command& command) {
  const auto body = read_exact_body<wire::ArrayPart>(command);
  if (!body || cuda::kind_of(body->handle) != Kind::array) return bad_body();
  if (!session.contexts.enter_named(command.header.context)) return CUDA_ERROR_INVALID_CONTEXT;
  CUarray part = nullptr;
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  if (const auto levels = session.table.resolve(Kind::mipmapped_array, body->whole)) {
    result = session.arrays.level(&part, static_cast<CUmipmappedArray>(*levels), body->number);
  } else if (const auto planes = session.table.resolve(Kind::array, body->whole)) {
    result = session.api.cuArrayGetPlane
                 ? session.api.cuArrayGetPlane(&part, static_cast<CUarray>(*planes), body->number)
                 : CUDA_ERROR_NOT_SUPPORTED;
  }
  if (result != CUDA_SUCCESS) return result;
  session.table.bind_owned(Kind::array, body->handle, part, body->whole);
  return session.table.broken() ? Outcome::malformed("an invalid new handle") : Outcome(CUDA_SUCCESS);
}

Outcome get_reference(Session& session, Command& command) {
  const auto body = command.body.get<wire::GetReference>();
  const std::string name(command.body.get_text());
  const Kind kind = cuda::kind_of(body.handle);
  if (!command.body.finished() || (kind != Kind::texture_reference && kind != Kind::surface_reference))
    return bad_body();
  if (name.find('\0') != std::string::npos) return CUDA_ERROR_NOT_FOUND;
  if (!session.contexts.enter_named(command.header.context)) return CUDA_ERROR_INVALID_CONTEXT;
  const auto module = session.table.resolve(Kind::module, body.module);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  void* reference = nullptr;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (kind == Kind::texture_reference && session.api.cuModuleGetTexRef) {
    CUtexref texture = nullptr;
    result = session.api.cuModuleGetTexRef(&texture, static_cast<CUmodule>(*module), name.c_str());
    reference = texture;
  } else if (kind == Kind::surface_reference && session.api.cuModuleGetSurfRef) {
    CUsurfref surface = nullptr;
    result = session.api.cuModuleGetSurfRef(&surface, static_cast<CUmodule>(*module), name.c_str());
    reference = surface;
  }
  if (result != CUDA_SUCCESS) return result;
  session.table.bind_owned(kind, body.handle, reference, body.module);
  return session.table.broken() ? Outcome::malformed("an invalid new handle") : Outcome(CUDA_SUCCESS);
}

Outcome set_border_color(Session& session, Command& command) {
  auto body = read_exact_body<wire::SetBorderColor>(command);
  if (!body) return bad_body();
  if (!session.contexts.enter_named(command.header.context)) return CUDA_ERROR_INVALID_CONTEXT;
  const auto reference = session.table.resolve(Kind::texture_reference, body->reference);
  if (!reference) return CUDA_ERROR_INVALID_HANDLE;
  if (!session.api.cuTexRefSetBorderColor) return CUDA_ERROR_NOT_SUPPORTED;
  return session.api.cuTexRefSetBorderColor(static_cast<CUtexref>(*reference), body->color);
}

}  // namespace gpupool::worker::commands
