// Device memory: the client chooses the address, the worker maps memory there. Freed memory is reused without
// a round trip.
#include <algorithm>

#include "client/api/destroy.h"
#include "client/api/graph.h"
#include "client/graphs/capture.h"
#include "client/graphs/graph_memory.h"
#include "client/memory/compared_copies.h"
#include "client/memory/host_memory.h"
#include "client/memory/idle_memory.h"
#include "client/memory/map_memory.h"
#include "client/memory/memory_pool.h"
#include "client/memory/mirrors.h"
#include "client/memory/virtual_memory.h"
#include "client/streams/side_stream.h"
#include "client/streams/stream.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/commands.h"

using namespace gpupool;
using namespace gpupool::client;

uint64_t gpupool::client::most_idle_bytes(const Session& session, const Device& device) {
  const uint64_t most = session.memory_limited() ? device.total_bytes / 64 : AddressSpace::kMostIdle;
  return std::min(most, AddressSpace::kMostIdle);
}

bool gpupool::client::give_back_idle(Session& session, const Device& device, bool include_unsettled) {
  bool any = trim_pools(device, false);
  const auto idle = session.addresses().take_idle(&device);
  for (const auto& gone : idle) {
    uint64_t sequence = 0;
    // Only work that earlier frees wait for can access idle memory, and frees take effect in order.
    (void)session.post(wire::Command::free_memory, nullptr,
                       wire::FreeMemory{gone.address, gone.unmap_size, wire::kAllStreams}, &sequence);
    session.addresses().retire_after(gone, sequence);
  }
  if (include_unsettled) any = trim_pools(device, true) || any;
  if (!any && idle.empty()) return false;
  quota_refusals().forget();  // the caller tries again
  return true;
}

namespace {

// Alignment of allocations and of cuMemAllocPitch, in bytes.
constexpr uint64_t kAlignment = 512;

CUresult release(Context& context, CUdeviceptr address, uint64_t stream) {
  if (const CUresult result = context.session->before_call(&context); result != CUDA_SUCCESS) return result;
  if (address == 0) return CUDA_SUCCESS;
  // The device copy of registered memory is freed when that is unregistered.
  if (compared_copies().any() && compared_copies().host_of(address)) [[unlikely]]
    return CUDA_ERROR_INVALID_VALUE;
  Session* owning = session_of(address, context.session);
  if (!owning) return CUDA_ERROR_INVALID_VALUE;
  Session& session = *owning;
  if (const auto pooled = session.addresses().take_pooled(address)) {
    // As the CUDA programming guide says: cuMemFree of pool memory asserts that no work uses it, so nothing
    // is waited for.
    pooled->pool_memory->free(*pooled, {});
    return CUDA_SUCCESS;
  }
  const auto about = session.addresses().find(address);
  const auto gone =
      session.addresses().release(address, about ? most_idle_bytes(session, *about->device) : 0);
  if (!gone || !about) return CUDA_ERROR_INVALID_VALUE;
  if (about->managed) {
    mirrors().remove(address);
    forget_advice(address, about->size);
  }
  Context* owner = handles().find_as<Context>(Kind::context, about->context);
  if (stream != wire::kAllStreams || !owner) owner = &context;
  if (owner->session != &session) return CUDA_ERROR_INVALID_VALUE;
  uint64_t sequence = 0;
  const CUresult result = session.post(wire::Command::free_memory, owner,
                                       wire::FreeMemory{gone->address, gone->unmap_size, stream}, &sequence);
  session.addresses().retire_after(*gone, sequence);
  return result;
}

CUresult allocate(Session& session, Context& context, CUdeviceptr* address, uint64_t bytes,
                  bool managed = false) {
  if (const CUresult result = session.before_call(&context); result != CUDA_SUCCESS) return result;
  if (!address || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Allocation about;
  about.context = context.owner().handle;
  about.device = context.device;
  about.managed = managed;
  const auto place = session.addresses().allocate(bytes, managed ? HostPages::page() : kAlignment, about);
  if (!place) return CUDA_ERROR_OUT_OF_MEMORY;
  if (place->map_size) {
    bool mapped = false;
    CUresult result = map_memory(session, context, *context.device, *place, 0, &mapped);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !mapped && give_back_idle(session, *context.device)) {
      result = map_memory(session, context, *context.device, *place, 0, &mapped);
    }
    if (result != CUDA_SUCCESS) {
      if (mapped)
        (void)release(context, place->address, wire::kAllStreams);
      else
        session.addresses().abandon(place->address);
      return result;
    }
    session.addresses().mapped(*place);
  }
  *address = place->address;
  return CUDA_SUCCESS;
}

// A free to a pool is work in its stream although nothing is sent. In the legacy stream it must be ordered
// behind the blocking streams' work and before their next work: an event does that. In a blocking stream it
// must be behind the legacy stream's work. On an H200 an event alone did not make a wait for the stream
// include that work; cuStreamWaitEvent does, also for an event that has nothing to do with either stream.
void order_free(Context& current, CUstream stream) {
  const bool legacy = cuda::handle_bits(stream) <= 1;
  if (legacy ? !current.blocking_streams.load(std::memory_order_relaxed)
             : !is_blocking(cuda::handle_bits(stream)))
    return;
  Context* context = &current;
  CUstream own = nullptr;
  if (!legacy && context_of_stream(stream, &context) == CUDA_SUCCESS &&
      internal_stream(*context, &own) == CUDA_SUCCESS)
    (void)order_after(*context, stream, *context, own);
  (void)record_marker_event(*context, stream);
}

CUresult allocate_pooled(Pool& pool, Context& context, CUstream stream, CUdeviceptr* address,
                         uint64_t bytes) {
  Allocation about;
  about.origin =
      pool.handle_types != 0 ? Allocation::Origin::shared_pool : Allocation::Origin::stream_ordered;
  about.pool = pool.handle;
  return pool.memory->allocate(context, stream, bytes, about, address);
}

CUresult allocate_async(CUdeviceptr* address, size_t bytes, CUstream stream, Pool* pool = nullptr,
                        const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_stream_for_work(&session, &context, stream); result != CUDA_SUCCESS)
      return result;
    if (address && bytes == 0) {
      *address = 0;
      return CUDA_SUCCESS;
    }
    const auto captured =
        capture::add(*context, stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, [&](NodeWork& work) -> CUresult {
          CUDA_MEM_ALLOC_NODE_PARAMS params{};
          params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
          params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, context->device->ordinal};
          params.bytesize = bytes;
          const CUresult result =
              address ? make_alloc_work(&params, context, work) : CUDA_ERROR_INVALID_VALUE;
          if (result == CUDA_SUCCESS) *address = params.dptr;
          return result;
        });
    if (captured) [[unlikely]]
      return *captured;
    Pool* const from = pool ? pool : current_pool(*context->device);
    return from ? allocate_pooled(*from, *context, stream, address, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
  });
}

CUresult free_async(CUdeviceptr address, CUstream stream, const char* caller = __builtin_FUNCTION()) {
  return guarded(caller, [&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_stream_for_work(&session, &context, stream); result != CUDA_SUCCESS)
      return result;
    const auto captured = capture::add(*context, stream, CU_GRAPH_NODE_TYPE_MEM_FREE,
                                       [&](NodeWork& work) { return make_free_work(address, work); });
    if (captured) [[unlikely]]
      return *captured;
    if (const CUresult result = session->before_call(context); result != CUDA_SUCCESS) return result;
    if (const auto pooled = session->addresses().take_pooled(address)) {
      order_free(*context, stream);
      pooled->pool_memory->free(*pooled, freed_in(*context, stream));
      return CUDA_SUCCESS;
    }
    if (const auto of_graph = graph_memory::free(address)) [[unlikely]]
      return *of_graph;
    if (is_opened(SharedKind::pool_pointer, address)) [[unlikely]] {  // another process's memory
      const CUresult result = cuStreamSynchronize(stream);
      return result == CUDA_SUCCESS ? close_shared(SharedKind::pool_pointer, address) : result;
    }
    Session* const owner = session_of(address, session);
    if (!owner || owner == session) return release(*context, address, cuda::handle_bits(stream));
    Context* const other = context_of(*owner, address);
    if (!other) return CUDA_ERROR_INVALID_VALUE;
    return run_between(*context, stream, other, nullptr,
                       [=] { return release(*other, address, wire::kAllStreams); });
  });
}

}  // namespace

CUresult gpupool::client::allocate_from(Pool& pool, CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async(address, bytes, stream, &pool);
}

CUresult gpupool::client::allocate_memory(Context& context, uint64_t bytes, CUdeviceptr* address,
                                          bool managed) {
  return allocate(*context.session, context, address, bytes, managed);
}

void gpupool::client::free_memory(Context& context, CUdeviceptr address) {
  (void)release(context, address, wire::kAllStreams);
}

CUDA_EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  size_t free_bytes = 0, total_bytes = 0;
  if (!free && !total) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = rows::cuMemGetInfo_v2::forward(&free_bytes, &total_bytes);
  if (result != CUDA_SUCCESS) return result;
  Session* session = nullptr;
  Context* context = nullptr;
  if (require_context(&session, &context) == CUDA_SUCCESS) {
    free_bytes += session->addresses().idle_bytes(context->device);
    context->device->total_bytes = total_bytes;
  }
  if (free) *free = free_bytes;
  if (total) *total = total_bytes;
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (const CUresult refused = capture::refuse_unsafe(); refused != CUDA_SUCCESS) return refused;
    return allocate(*session, *context, address, bytes);
  });
}

CUDA_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                                        unsigned int element_size) {
  if (!pitch || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element_size != 4 && element_size != 8 && element_size != 16) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t row = (width + kAlignment - 1) / kAlignment * kAlignment;
  if (row < width || row > UINT64_MAX / height) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = cuMemAlloc_v2(address, row * height);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

CUDA_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (address == 0) return capture::refuse_unsafe();
    Session* const owner = session_of(address, current_session());
    const auto about = owner ? owner->addresses().find(address) : std::nullopt;
    const BorrowedContext borrowed(about ? about->context : 0);
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (const CUresult refused = capture::refuse_unsafe(); refused != CUDA_SUCCESS) return refused;
    if (const auto of_graph = graph_memory::free(address)) [[unlikely]]
      return *of_graph;
    if (is_opened(SharedKind::pool_pointer, address)) [[unlikely]] {
      const CUresult result = cuCtxSynchronize();
      return result == CUDA_SUCCESS ? close_shared(SharedKind::pool_pointer, address) : result;
    }
    return release(*context, address, wire::kAllStreams);
  });
}

CUDA_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async(address, bytes, stream);
}
CUDA_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async(address, bytes, or_per_thread(stream));
}
CUDA_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_async(address, stream);
}
CUDA_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_async(address, or_per_thread(stream));
}

CUDA_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  Session* const session = session_of(address, current_session());
  if (const auto found = session ? session->addresses().find(address) : std::nullopt) {
    if (base) *base = found->address;
    if (size) *size = found->size;
    return CUDA_SUCCESS;
  }
  if (const auto host = host_memory().find(address)) {
    if (base) *base = host->address;
    if (size) *size = host->size;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}
