// Texture and surface references of modules: table rows, except for state that the client must store (the
// bound array).
#include "client/api/texture_reference.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "client/memory/array.h"
#include "client/session/module.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/commands.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// By kind, module handle and name. Handles are never reused for another object, so entries of unloaded
// modules are harmless.
struct References {
  std::mutex mutex;
  std::map<std::tuple<Kind, uint64_t, std::string>, uint64_t> by_name;
};
References& references() {
  static References* const only = new References;
  return *only;
}

Reference* find(Kind kind, uint64_t handle) {
  return handles().find_as<Reference>(kind, handle);
}
Reference* find(CUtexref reference) {
  return find(Kind::texture_reference, cuda::handle_bits(reference));
}

CUresult get(Kind kind, CUmodule module, const char* name, uint64_t* handle) {
  CallTarget target;
  if (const CUresult result = require_context(&target.session, &target.context); result != CUDA_SUCCESS)
    return result;
  if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
  const auto* const code = handles().find_as<Code>(Kind::module, cuda::handle_bits(module));
  if (!code) return CUDA_ERROR_INVALID_HANDLE;
  // Libraries came with CUDA 12, which removed references.
  if (code->library != 0) return CUDA_ERROR_NOT_FOUND;
  redirect(*code, target);
  if (!target.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  const std::lock_guard lock(references().mutex);
  uint64_t& known = references().by_name[{kind, cuda::handle_bits(module), name}];
  if (!find(kind, known)) {
    auto made = std::make_unique<Reference>();
    made->of_module = true;
    made->context = target.context->handle;
    const uint64_t minted = target.session->mint(kind, std::move(made));
    if (minted == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    wire::Buffer reply;
    const CUresult result =
        target.session->call(wire::Command::get_reference, target.context, std::string_view(name), reply,
                             wire::GetReference{minted, cuda::handle_bits(module)});
    if (result != CUDA_SUCCESS) {
      handles().retire(minted);
      return result;
    }
    known = minted;
  }
  *handle = known;
  return CUDA_SUCCESS;
}

// Stores what a successful call has bound: an array, a mipmapped array, or neither (memory).
CUresult record_binding(CUresult result, Reference* reference, uint64_t array, uint64_t mipmapped_array) {
  if (result != CUDA_SUCCESS || !reference) return result;
  const std::lock_guard lock(reference->mutex);
  reference->array = array;
  reference->mipmapped_array = mipmapped_array;
  return result;
}

}  // namespace

CUDA_EXPORT CUresult cuModuleGetTexRef(CUtexref* reference, CUmodule module, const char* name) {
  return guarded([&]() -> CUresult {
    uint64_t handle = 0;
    const CUresult result = get(Kind::texture_reference, module, name, reference ? &handle : nullptr);
    if (result == CUDA_SUCCESS) *reference = cuda::handle_from_bits<CUtexref>(handle);
    return result;
  });
}
CUDA_EXPORT CUresult cuModuleGetSurfRef(CUsurfref* reference, CUmodule module, const char* name) {
  return guarded([&]() -> CUresult {
    uint64_t handle = 0;
    const CUresult result = get(Kind::surface_reference, module, name, reference ? &handle : nullptr);
    if (result == CUDA_SUCCESS) *reference = cuda::handle_from_bits<CUsurfref>(handle);
    return result;
  });
}
CUDA_EXPORT CUresult cuTexRefCreate(CUtexref* reference) {
  return guarded([&]() -> CUresult {
    CallTarget target;
    if (const CUresult result = require_context(&target.session, &target.context); result != CUDA_SUCCESS)
      return result;
    if (!reference) return CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_unique<Reference>();
    made->context = target.context->handle;
    const uint64_t minted = target.session->mint(Kind::texture_reference, std::move(made));
    if (minted == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    wire::Buffer reply;
    const CUresult result = target.session->call(
        rows::cuTexRefCreate::kId, target.context, [&](wire::Writer& writer) { writer.put(minted); }, reply);
    if (result == CUDA_SUCCESS)
      *reference = cuda::handle_from_bits<CUtexref>(minted);
    else
      handles().retire(minted);
    return result;
  });
}
CUDA_EXPORT CUresult cuTexRefDestroy(CUtexref reference) {
  const Reference* const known = find(reference);
  return rows::cuTexRefDestroy::forward(known && known->of_module ? nullptr : reference);
}

CUDA_EXPORT CUresult cuTexRefSetArray(CUtexref reference, CUarray array, unsigned int flags) {
  return record_binding(rows::cuTexRefSetArray::forward(reference, array, flags), find(reference),
                        cuda::handle_bits(array), 0);
}
CUDA_EXPORT CUresult cuTexRefSetMipmappedArray(CUtexref reference, CUmipmappedArray array,
                                               unsigned int flags) {
  return record_binding(rows::cuTexRefSetMipmappedArray::forward(reference, array, flags), find(reference), 0,
                        cuda::handle_bits(array));
}
CUDA_EXPORT CUresult cuTexRefSetAddress_v2(size_t* offset, CUtexref reference, CUdeviceptr address,
                                           size_t bytes) {
  return record_binding(rows::cuTexRefSetAddress_v2::forward(offset, reference, address, bytes),
                        find(reference), 0, 0);
}
CUDA_EXPORT CUresult cuTexRefSetAddress2D_v3(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR* shape,
                                             CUdeviceptr address, size_t pitch) {
  return record_binding(rows::cuTexRefSetAddress2D_v3::forward(reference, shape, address, pitch),
                        find(reference), 0, 0);
}
CUDA_EXPORT CUresult cuTexRefGetAddress(CUdeviceptr_v1* address, CUtexref reference) {
  CUdeviceptr wide = 0;
  const CUresult result = rows::cuTexRefGetAddress_v2::forward(address ? &wide : nullptr, reference);
  if (result == CUDA_SUCCESS && address) *address = static_cast<CUdeviceptr_v1>(wide);
  return result;
}

CUDA_EXPORT CUresult cuTexRefSetBorderColor(CUtexref reference, float* color) {
  return guarded([&]() -> CUresult {
    CallTarget target;
    if (const CUresult result = require_context(&target.session, &target.context); result != CUDA_SUCCESS)
      return result;
    Reference* const known = find(reference);
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    if (!color) return CUDA_ERROR_INVALID_VALUE;
    redirect(*known, target);
    if (!target.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    wire::SetBorderColor body{known->handle, {}};
    std::copy(color, color + 4, body.color);
    wire::Buffer reply;
    const CUresult result =
        target.session->call(wire::Command::set_border_color, target.context, body, reply);
    if (result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(known->mutex);
    std::copy(color, color + 4, known->border);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuTexRefGetBorderColor(float* color, CUtexref reference) {
  return guarded([&]() -> CUresult {
    CallTarget target;
    if (const CUresult result = require_context(&target.session, &target.context); result != CUDA_SUCCESS)
      return result;
    Reference* const known = find(reference);
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    if (!color) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(known->mutex);
    std::copy(known->border, known->border + 4, color);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuSurfRefSetArray(CUsurfref reference, CUarray array, unsigned int flags) {
  return record_binding(rows::cuSurfRefSetArray::forward(reference, array, flags),
                        find(Kind::surface_reference, cuda::handle_bits(reference)), cuda::handle_bits(array),
                        0);
}
