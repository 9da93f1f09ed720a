// The objects that CUDA_ANSWER and CUDA_CHECK rows of calls.def are about. Each has the type of its handle
// among a function's parameters (void: none), find(), and the properties that rows name. A handle is a
// property as uint64_t. Objects are made for one call; those that keep a lock keep it until the call returns.
#pragma once
#include <cstring>

#include "client/api/texture.h"
#include "client/api/texture_reference.h"
#include "client/graphs/graph_exec.h"
#include "client/memory/array.h"
#include "client/memory/host_memory.h"
#include "client/memory/virtual_memory.h"
#include "client/streams/stream.h"

namespace gpupool::client::subjects {

struct library {
  using Handle = void;
  CUresult find() { return ready(); }
  size_t device_count() const { return devices().size(); }
};

struct device {
  using Handle = CUdevice;
  CUresult find(CUdevice ordinal) {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    known = find_device(ordinal);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  }
  int ordinal() const { return known->ordinal; }
  uint64_t total_bytes() const { return known->total_bytes; }
  CUuuid uuid() const {
    CUuuid bytes;
    std::memcpy(bytes.bytes, known->uuid.data(), sizeof bytes.bytes);
    return bytes;
  }
  int attribute(CUdevice_attribute id) const {
    const auto found = known->attributes.find(id);
    return found == known->attributes.end() ? 0 : found->second;
  }
  std::tuple<int, int> compute_capability() const {
    return {attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)};
  }
  Device* known = nullptr;
};

struct primary_context {
  using Handle = CUdevice;
  CUresult find(CUdevice ordinal) {
    device owner;
    const CUresult result = owner.find(ordinal);
    if (result == CUDA_SUCCESS) known = owner.known->primary;
    return result;
  }
  std::tuple<unsigned, bool> state() const {
    const std::lock_guard lock(known->mutex);
    return {known->flags, known->active.load()};
  }
  Context* known = nullptr;
};

// Null means the current context.
struct context {
  using Handle = CUcontext;
  CUresult find(CUcontext given) { return find_context(given, &session, &known); }
  int device() const { return known->device->ordinal; }
  unsigned flags() const { return known->flags; }
  unsigned long long id() const { return known->id; }
  // NVIDIA's driver returns this value for every context since cuCtxCreate_v2.
  unsigned version() const { return 3020; }
  Session* session = nullptr;
  Context* known = nullptr;
};

struct current_context : context {
  using Handle = void;
  CUresult find() {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    CUresult error = CUDA_SUCCESS;
    known = client::current_context(&error);
    return known ? CUDA_SUCCESS : error;
  }
};

struct stream : StreamFacts {
  using Handle = CUstream;
  CUresult find(CUstream given) { return describe_stream(given, this); }
  uint64_t context_handle() const { return context->handle; }
  uint64_t green_context() const { return context->green; }
  int device() const { return context->device->ordinal; }
};

struct function {
  using Handle = CUfunction;
  CUresult find(CUfunction given) {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    known = find_function(given);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  const char* name() const { return known->name.c_str(); }
#if CUDA_VERSION >= 12040
  // A kernel is loaded when it is looked up.
  CUfunctionLoadingState loading_state() const { return CU_FUNCTION_LOADING_STATE_LOADED; }
#endif
  Function* known = nullptr;
};

#if CUDA_VERSION >= 12000
struct kernel : function {
  using Handle = CUkernel;
  CUresult find(CUkernel given) { return function::find(reinterpret_cast<CUfunction>(given)); }
};
#endif

struct graph_node {
  using Handle = CUgraphNode;
  CUresult find(CUgraphNode given) {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    lock = std::unique_lock(graph_mutex());
    known = find_node(given);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  CUgraphNodeType type() const { return known->type; }
  std::unique_lock<std::mutex> lock;
  GraphNode* known = nullptr;
};

struct graph_exec {
  using Handle = CUgraphExec;
  CUresult find(CUgraphExec given) {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    known = handles().find_as<GraphExec>(Kind::graph_exec, cuda::handle_bits(given));
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t flags() const { return known->flags; }
  GraphExec* known = nullptr;
};

// Memory of cuMemCreate.
struct memory {
  using Handle = CUmemGenericAllocationHandle;
  CUresult find(CUmemGenericAllocationHandle given) {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    known = find_memory(given);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  const CUmemAllocationProp& properties() const { return known->properties; }
  Memory* known = nullptr;
};

// Pinned memory of the program, at any address in it.
struct pinned_memory {
  using Handle = void*;
  CUresult find(void* address) {
    known = host_memory().find(reinterpret_cast<uintptr_t>(address));
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  unsigned flags() const { return known->flags | (known->device ? CU_MEMHOSTALLOC_DEVICEMAP : 0u); }
  std::optional<HostAllocation> known;
};

inline CUresult enter_context() {
  CallTarget target;
  return require_context(&target.session, &target.context);
}

struct array {
  using Handle = CUarray;
  static CUresult enter() { return enter_context(); }
  CUresult find(CUarray given) {
    known = handles().find_as<Array>(Kind::array, cuda::handle_bits(given));
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  const CUDA_ARRAY3D_DESCRIPTOR& shape() const { return known->shape; }
  CUDA_ARRAY_DESCRIPTOR rectangle() const {
    return {shape().Width, shape().Height, shape().Format, shape().NumChannels};
  }
  Array* known = nullptr;
};

template <bool Surface>
struct texture_or_surface {
  using Handle = unsigned long long;
  CUresult find(unsigned long long object) {
    CallTarget target;
    if (const CUresult result = require_context(&target.session, &target.context); result != CUDA_SUCCESS)
      return result;
    lock = std::unique_lock(textures().mutex);
    const auto found = textures().all.find({target.context->handle, object});
    if (found == textures().all.end() || found->second.surface != Surface) return CUDA_ERROR_INVALID_VALUE;
    known = &found->second;
    return CUDA_SUCCESS;
  }
  const CUDA_RESOURCE_DESC& resource() const { return known->resource; }
  const CUDA_TEXTURE_DESC& reading() const { return known->reading; }
  const std::optional<CUDA_RESOURCE_VIEW_DESC>& view() const { return known->view; }
  std::unique_lock<std::mutex> lock;
  const Texture* known = nullptr;
};
using texture = texture_or_surface<false>;
using surface = texture_or_surface<true>;

template <Kind K, class T>
struct reference {
  using Handle = T;
  CUresult find(T given) {
    if (const CUresult result = enter_context(); result != CUDA_SUCCESS) return result;
    known = handles().find_as<Reference>(K, cuda::handle_bits(given));
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  std::optional<uint64_t> bound(uint64_t Reference::*which) const {
    const std::lock_guard lock(known->mutex);
    const uint64_t handle = known->*which;
    return handle != 0 ? std::optional(handle) : std::nullopt;
  }
  std::optional<uint64_t> array() const { return bound(&Reference::array); }
  std::optional<uint64_t> mipmapped_array() const { return bound(&Reference::mipmapped_array); }
  Reference* known = nullptr;
};
using texture_reference = reference<Kind::texture_reference, CUtexref>;
using surface_reference = reference<Kind::surface_reference, CUsurfref>;

}  // namespace gpupool::client::subjects
