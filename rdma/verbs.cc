#include "rdma/verbs.h"

#include <dlfcn.h>

#include <string>
#include <system_error>

namespace gpupool::transport::rdma {
namespace {

Result<const Verbs*> load_library() {
  static Verbs found;
  // Never closed: the library's threads and exit handlers may still need it.
  void* const library = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return Error{ErrorCode::unavailable, "libibverbs.so.1 is not installed (package libibverbs1)"};
#define VERB(name)                                                                     \
  found.name = reinterpret_cast<decltype(found.name)>(::dlsym(library, "ibv_" #name)); \
  if (!found.name) return Error{ErrorCode::unavailable, "libibverbs.so.1 has no ibv_" #name};
  GPUPOOL_VERBS(VERB)
#undef VERB
  found.reg_dmabuf_mr =
      reinterpret_cast<decltype(found.reg_dmabuf_mr)>(::dlsym(library, "ibv_reg_dmabuf_mr"));
  return &found;
}

}  // namespace

Error verb_failure(const char* doing, int error) {
  return {ErrorCode::unavailable, std::string(doing) + ": " + std::generic_category().message(error)};
}

Result<const Verbs*> load_verbs() {
  // Never destroyed: exit handlers use it too.
  static const auto* const loaded = new Result<const Verbs*>(load_library());
  return *loaded;
}

}  // namespace gpupool::transport::rdma
