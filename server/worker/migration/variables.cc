#include "server/worker/migration/variables.h"

#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

using cuda::Kind;

// The contexts that may have the code loaded: a module's own, and all of a library's devices.
std::vector<ContextState*> contexts_of(Session& session, const History::Entry& load) {
  if (cuda::kind_of(load.effect.makes.front()) == Kind::module)
    return {session.contexts.find(load.header.context)};
  std::vector<ContextState*> all;
  for (auto& [handle, context] : session.contexts.all()) all.push_back(context.get());
  return all;
}

Result<void> visit_in(Session& session, ContextState& context, const History::Entry& load,
                      const cuda::ModuleVariables& variables,
                      const std::function<void(const Variable&)>& visit) {
  for (const auto& [name, variable] : variables.by_name) {
    if (variable.managed) continue;  // its memory is the client's
    if (variable.repeated)
      return Error{ErrorCode::refused,
                   "the session has several variables named " + name + ", which cannot migrate"};
    if (session.contexts.enter(&context) != CUDA_SUCCESS)
      return Error{ErrorCode::unavailable, "a context of the session has failed"};
    Variable found{name, &context};
    const CUresult result = find_variable(session, load.effect.makes.front(), name, &found);
    if (result == CUDA_ERROR_NOT_FOUND) continue;  // removed by the driver's compiler
    if (result != CUDA_SUCCESS) return Error{ErrorCode::unavailable, "variable " + name + " cannot be found"};
    visit(found);
  }
  return {};
}

}  // namespace

Result<void> for_each_variable(Session& session, const History::Entry& load, VariableLists& lists,
                               const std::function<void(const Variable&)>& visit) {
  for (ContextState* const context : contexts_of(session, load)) {
    if (!context) return Error{ErrorCode::invalid, "a module has no context"};
    const auto [known, is_new] = lists.try_emplace({load.effect.makes.front(), context->device});
    cuda::ModuleVariables& variables = known->second;
    const auto target = code_target(session.api, context->device);
    if (!target) return Error{ErrorCode::unavailable, "the GPU does not tell its compute capability"};
    const CUresult result =
        is_new ? cuda::variables_of_bundle(load.image->bytes(), *target, variables) : CUDA_SUCCESS;
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU) continue;
    if (result != CUDA_SUCCESS) lists.erase(known);
    if (result != CUDA_SUCCESS)
      return Error{ErrorCode::refused, "the variables of a module's code cannot be listed"};
    if (variables.uses_heap)
      return Error{ErrorCode::refused, "the session has kernels that allocate memory, which cannot migrate"};
    if (auto visited = visit_in(session, *context, load, variables, visit); !visited) return visited;
  }
  return {};
}

CUresult find_variable(Session& session, uint64_t owner, const std::string& name, Variable* found) {
  CUdeviceptr address = 0;
  size_t size = 0;
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  if (const auto module = session.table.resolve(Kind::module, owner)) {
    result = session.api.cuModuleGetGlobal_v2(&address, &size, static_cast<CUmodule>(*module), name.c_str());
#if CUDA_VERSION >= 12000
  } else if (const auto library = session.table.resolve(Kind::library, owner)) {
    result =
        session.api.cuLibraryGetGlobal
            ? session.api.cuLibraryGetGlobal(&address, &size, static_cast<CUlibrary>(*library), name.c_str())
            : CUDA_ERROR_NOT_SUPPORTED;
#endif
  }
  found->address = address;
  found->size = size;
  return result;
}

}  // namespace gpupool::worker
