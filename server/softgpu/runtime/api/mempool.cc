// Stream-ordered allocation and its pools.
#include <optional>

#include "server/softgpu/runtime/api/graph.h"
#include "server/softgpu/runtime/graph_memory.h"

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

// If the stream is being captured, adds a memory node that `set` fills in; otherwise returns nullopt.
template <class Set>
std::optional<CUresult> capture_node(Stream& stream, CUgraphNodeType type, const Set& set) {
  if (!stream.capturing()) return std::nullopt;
  std::lock_guard guard(graph_mutex());
  const Ref<Capture> capture = stream.capture();
  if (!capture) return std::nullopt;
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  const Ref<GraphNode> made = make_ref<GraphNode>(*capture->graph, type);
  if (const CUresult result = set(*made); result != CUDA_SUCCESS) return result;
  const Ref<GraphNode> node = capture->add_node(stream, type, 0);
  node->memory = made->memory;
  node->alloc = made->alloc;
  return CUDA_SUCCESS;
}

CUresult allocate_from(Stream& stream, const Ref<MemoryPool>& pool, CUdeviceptr* address, size_t size) {
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (size == 0) {
    *address = 0;
    return CUDA_SUCCESS;
  }
  const auto captured = capture_node(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, [&](GraphNode& node) {
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, stream.context().device().index()};
    params.bytesize = size;
    const CUresult result = set_alloc(node, &params, &stream.context());
    if (result == CUDA_SUCCESS) *address = params.dptr;
    return result;
  });
  if (captured) return *captured;
  auto memory = pool->allocate(size);
  if (!memory) {
    // Frees that are still queued may release enough.
    if (const CUresult result = stream.context().synchronize(stream); result != CUDA_SUCCESS) return result;
    runtime().free_cached_memory(pool->device());
    memory = pool->allocate(size);
  }
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  MemoryRange range;
  range.address = *memory;
  range.size = size;
  range.kind = MemoryKind::pool;
  range.device = pool->device().index();
  range.context = stream.context().root().handle();
  range.owner = pool;
  if (!runtime().memory().add(range)) {
    pool->free_block(*memory);
    return CUDA_ERROR_UNKNOWN;
  }
  *address = *memory;
  return CUDA_SUCCESS;
}

template <class Body>
CUresult call_on_pool(CUmemoryPool handle, const Body& body) noexcept {
  return call([&] {
    const Ref<MemoryPool> pool = find<MemoryPool>(handle);
    return pool ? body(*pool) : CUDA_ERROR_INVALID_VALUE;
  });
}

bool is_access(CUmemAccess_flags flags) {
  return flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
         flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

}  // namespace

CUDA_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t size, CUstream handle) {
  return call_on_stream(handle, [&](Stream& stream) {
    return allocate_from(stream, stream.context().device().pool(), address, size);
  });
}

CUDA_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t size, CUmemoryPool pool_handle,
                                             CUstream handle) {
  return call_on_stream(handle, [&](Stream& stream) {
    const Ref<MemoryPool> pool = find<MemoryPool>(pool_handle);
    return pool ? allocate_from(stream, pool, address, size) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  return call_on_stream(handle, [&](Stream& stream) {
    const auto captured = capture_node(stream, CU_GRAPH_NODE_TYPE_MEM_FREE,
                                       [&](GraphNode& node) { return set_free(node, address); });
    if (captured) return *captured;
    if (address == 0) return CUDA_SUCCESS;
    cuda::graph_memory::Shared gone;
    if (const auto of_graph = cuda::graph_memory::free(address, &gone)) {
      return *of_graph == CUDA_SUCCESS
                 ? stream.context().enqueue(stream, make_ref<ReleaseMemoryOp>(std::move(gone)))
                 : *of_graph;
    }
    // Mark the range now, to detect a second free; the memory stays until the stream reaches the operation.
    bool queued = false;
    const auto range = runtime().memory().find(address);
    if (!range || range->address != address) return CUDA_ERROR_INVALID_VALUE;
    runtime().memory().change(address, range->size, [&](MemoryRange& found) {
      const bool ours = found.kind == MemoryKind::pool || found.kind == MemoryKind::device;
      if (ours && !found.free_queued) found.free_queued = queued = true;
    });
    return queued ? stream.context().enqueue(stream, make_ref<FreeOp>(address)) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
  return call([&] {
    if (handle == nullptr || properties == nullptr ||
        properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
    Device* device = runtime().device(properties->location.id);
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
#if CUDA_VERSION >= 12030
    const uint64_t max_size = properties->maxSize;
#else
    const uint64_t max_size = 0;
#endif
    const Ref<MemoryPool> pool = make_ref<MemoryPool>(*device, max_size);
    pool->handle = runtime().handles().add(pool);
    if (pool->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    runtime().add_pool(pool);
    *handle = make_handle<CUmemoryPool>(pool->handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return call_on_pool(handle, [&](MemoryPool& pool) {
    Device& device = pool.device();
    if (&pool == device.default_pool().get()) return CUDA_ERROR_INVALID_VALUE;
    if (!runtime().handles().remove<MemoryPool>(handle_value(handle))) return CUDA_ERROR_INVALID_VALUE;
    if (device.pool().get() == &pool) device.set_pool(device.default_pool());
    pool.handle_destroyed();
    runtime().remove_pool(&pool);  // existing allocations keep the pool alive
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  return call_on_pool(handle, [&](MemoryPool& pool) {
    pool.trim(keep);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return call_on_pool(handle, [&](MemoryPool& pool) {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool.attribute(attribute, value);
  });
}

CUDA_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return call_on_pool(handle, [&](MemoryPool& pool) {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool.set_attribute(attribute, value);
  });
}

CUDA_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, size_t count) {
  return call_on_pool(handle, [&](MemoryPool& pool) {
    if (map == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !is_access(map[i].flags))
        return CUDA_ERROR_INVALID_VALUE;
      if (runtime().device(map[i].location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
      // A device's access to its own pool cannot be revoked.
      if (map[i].location.id == pool.device().index() && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
    }
    for (size_t i = 0; i < count; ++i) pool.set_access(map[i].location.id, map[i].flags);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                                        CUmemLocation* location) {
  return call_on_pool(handle, [&](MemoryPool& pool) {
    if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (runtime().device(location->id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *flags = pool.access(location->id);
    return CUDA_SUCCESS;
  });
}
