// Copies. The kinds of both ends determine the path: host to device is sent, device to host is received,
// device to device is a table row, host to host is a memmove after the stream has been synchronised.
#include <algorithm>
#include <cstring>

#include "client/api/device_range.h"
#include "client/api/host_function.h"
#include "client/copies/transfer.h"
#include "client/graphs/capture.h"
#include "client/memory/array.h"
#include "client/memory/compared_copies.h"
#include "client/memory/host_memory.h"
#include "client/memory/host_range.h"
#include "client/memory/mirrors.h"
#include "client/memory/shared_name.h"
#include "client/process/log.h"
#include "client/streams/side_stream.h"
#include "protocol/calls/box.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

uint64_t address_of(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

bool is_device(uint64_t address) {
  return session_of(address, current_session()) != nullptr;
}

struct Caller {
  Session* session = nullptr;
  Context* context = nullptr;
  CUstream stream = nullptr;
  bool wait = false;  // a synchronous call
};

CUresult enter(Caller& caller) {
  return require_stream_for_work(&caller.session, &caller.context, caller.stream);
}

// Bytes from the first to the last; UINT64_MAX on overflow, which no memory contains.
uint64_t span_of(const CopyBox& box, const CopyEnd& end) {
  uint64_t slices = 0, rows = 0, span = 0;
  if (__builtin_mul_overflow(box.depth - 1, end.slice, &slices) ||
      __builtin_mul_overflow(box.height - 1, end.pitch, &rows) ||
      __builtin_add_overflow(slices, rows, &span) || __builtin_add_overflow(span, box.width, &span)) {
    return UINT64_MAX;
  }
  return span;
}

// Computes z * slice + y * pitch + x; false on overflow.
bool offset_of(uint64_t x, uint64_t y, uint64_t pitch, uint64_t z, uint64_t slice, uint64_t* offset) {
  uint64_t rows = 0;
  return !__builtin_mul_overflow(z, slice, offset) && !__builtin_mul_overflow(y, pitch, &rows) &&
         !__builtin_add_overflow(*offset, rows, offset) && !__builtin_add_overflow(*offset, x, offset);
}

void move_rows(const CopyBox& box) {
  for (uint64_t z = 0; z < box.depth; ++z) {
    for (uint64_t y = 0; y < box.height; ++y) {
      std::memmove(host_pointer(box.to.address + z * box.to.slice + y * box.to.pitch),
                   host_pointer(box.from.address + z * box.from.slice + y * box.from.pitch), box.width);
    }
  }
}

CUresult host_to_host(const Caller& caller, const CopyBox& box) {
  const CUresult result = cuStreamSynchronize(caller.stream);
  if (result == CUDA_SUCCESS) move_rows(box);
  return result;
}

// Pinned memory is read when the stream reaches the copy, because earlier work of the stream may still write
// to it (a host function, a copy from the device). The stream is held until the data has been sent and copied
// in another stream.
CUresult copy_to_device_later(const Caller& caller, uint64_t to, const void* from, const Rows& rows) {
  CUstream own = nullptr;
  Session& session = *caller.session;
  Context& context = *caller.context;
  if (const CUresult result = internal_stream(context, &own); result != CUDA_SUCCESS) return result;
  return run_in_stream(session, context, caller.stream, [&session, &context, own, to, from, rows] {
    (void)copy_to_device(session, context, own, to, from, rows, CopyOrder::passes_others, Source::kept);
    return cuda::handle_bits(own);
  });
}

// Memory that the server maps too: the device accesses it directly when the stream reaches the copy.
CUresult copy_in_place(const Caller& caller, const HostAllocation& memory, const CopyEnd& host,
                       const CopyEnd& device, const Rows& rows, uint64_t depth, bool up) {
  for (uint64_t z = 0; z < depth; ++z) {
    const uint64_t offset = host.address - memory.address + z * host.slice;
    const CUresult result = copy_shared(*caller.session, *caller.context, caller.stream, memory.id, offset,
                                        device.address + z * device.slice, rows, up);
    if (result != CUDA_SUCCESS) return result;
  }
  return caller.wait ? cuStreamSynchronize(caller.stream) : CUDA_SUCCESS;
}

CUresult run_between_servers(const Caller& caller, CopyBox box) {
  bool wait = caller.wait;
  for (CopyEnd* end : {&box.from, &box.to}) {
    if (end->on_device) {
      if (!end->context) end->context = caller.context;
    } else if (!host_memory().is_pinned(host_pointer(end->address), span_of(box, *end))) {
      wait = true;  // pageable memory may be freed when the call returns
    }
  }
  return copy_between_servers(*caller.context, caller.stream, box, wait);
}

// True if a copy from the device has yet to write to this memory.
bool awaits_data_in(const void* memory, uint64_t bytes) {
  return std::any_of(sessions().begin(), sessions().end(),
                     [&](const auto& session) { return session->receiver().awaits_data_in(memory, bytes); });
}

// Checks that both ends are valid memory. Ends on other servers than `own` get a context there.
CUresult check_ends(CopyBox& box, Session& own, bool& between_servers) {
  for (CopyEnd* end : {&box.from, &box.to}) {
    if (box.height > 1 && end->pitch < box.width) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t span = span_of(box, *end);
    // With unified addressing the address decides, even if the program calls device memory host memory (Warp
    // does).
    if (!end->on_device && session_of(end->address, &own)) end->on_device = true;
    if (mirrors().any() && span != UINT64_MAX) [[unlikely]] {
      // Mirrored memory is copied on the device, whichever kind the program names.
      if (const auto both = mirrors().find(end->address);
          both && span <= both->bytes - (end->address - both->address)) {
        end->on_device = true;
        if (!both->managed && both->session != &own) return CUDA_ERROR_NOT_SUPPORTED;
        if (!both->managed) continue;
      } else if (!end->on_device && mirrors().overlaps(end->address, span)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    Session* const session = end->on_device ? session_of(end->address, &own) : nullptr;
    // Pinned memory may be named as device memory.
    if (end->on_device && !session && span != UINT64_MAX &&
        host_memory().is_pinned(host_pointer(end->address), span))
      end->on_device = false;
    if (end->on_device ? !session || !is_device_range_mapped(*session, end->address, span)
                       : end->address == 0 || span == UINT64_MAX) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!session || session == &own) continue;
    between_servers = true;
    end->context = context_of(*session, end->address);
    if (!end->context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  return CUDA_SUCCESS;
}

// The parameters that cuGraphMemcpyNodeGetParams returns for a captured copy.
CUDA_MEMCPY3D describe(const CopyBox& box) {
  CUDA_MEMCPY3D params{};
  params.srcMemoryType = params.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  params.srcDevice = box.from.address;
  params.srcPitch = box.from.pitch;
  params.srcHeight = box.from.pitch ? box.from.slice / box.from.pitch : 0;
  params.dstDevice = box.to.address;
  params.dstPitch = box.to.pitch;
  params.dstHeight = box.to.pitch ? box.to.slice / box.to.pitch : 0;
  params.WidthInBytes = box.width;
  params.Height = box.height;
  params.Depth = box.depth;
  return params;
}

std::optional<CUresult> capture_copy(const Caller& caller, const CopyBox& box, bool between_servers) {
  if (!capture::any()) [[likely]]
    return std::nullopt;
  if (caller.wait) {
    const CUresult refused = capture::refuse(*caller.context, caller.stream);
    return refused == CUDA_SUCCESS ? std::nullopt : std::optional(refused);
  }
  return capture::add(*caller.context, caller.stream, CU_GRAPH_NODE_TYPE_MEMCPY, [&](NodeWork& work) {
    work = CopyWork{describe(box), box};
    return between_servers ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
  });
}

// Synchronises mirrored memory and registered memory before a copy. `use`: kept until the copy is queued.
CUresult before_copy(const Caller& caller, const CopyBox& box, Mirrors::PendingWrite& use) {
  for (const CopyEnd* end : {&box.from, &box.to}) {
    const uint64_t bytes = span_of(box, *end);
    if (!end->on_device) {
      // Host end: fetch the device's changes first.
      const CUresult result = compared_copies().device_may_be_newer(end->address, bytes)
                                  ? synchronize_stream(*caller.context, caller.stream)
                                  : CUDA_SUCCESS;
      if (result != CUDA_SUCCESS) return result;
      continue;
    }
    const bool here = !end->context || end->context->session == caller.session;
    Context& context = here ? *caller.context : *end->context;
    const CUstream stream = here ? caller.stream : nullptr;
    CUresult result = mirrors().before_use(context, end->address, bytes, end == &box.to ? &use : nullptr);
    if (result == CUDA_SUCCESS && compared_copies().any())
      result = compared_copies().before_use(context, stream, end->address, bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// True if a synchronous copy to the device must be complete when the call returns. Usually the call returns
// when its data has been read, and later work of all streams waits for the copy. That is not enough if
// earlier work of the legacy stream writes to the program's memory, or if another process shares device
// memory: both could be observed too early. And it could deadlock if a stream is held or waits for a value.
bool must_complete_before_return(const Context& context) {
  return streams_may_block() || context.writes_host_memory.load(std::memory_order_relaxed) ||
         memory_is_shared();
}

constexpr uint64_t kDeferredCopyBytes = 16 * 1024;

// Copies between the program's memory and the device. `asked` has the program's context and stream; `caller`
// has those to use, which differ if the memory is on another device than the stream's.
CUresult run_host_device(const Caller& asked, const Caller& caller, const CopyBox& box) {
  const bool up = box.to.on_device;
  const CopyEnd& host = up ? box.from : box.to;
  const CopyEnd& device = up ? box.to : box.from;
  const Rows rows = make_rows(box.width, box.height, host.pitch, device.pitch);
  const uint64_t host_span = span_of(box, host);
  void* const start = host_pointer(host.address);
  const bool written = up && host_memory().is_written(start);
  const bool ends_first = up && caller.wait && must_complete_before_return(*asked.context);
  // A small synchronous copy to the device is sent with the next commands; the caller does not wait.
  const bool send_deferred = up && caller.wait && !written && !ends_first &&
                             box.width * box.height * box.depth <= kDeferredCopyBytes;
  if (!send_deferred && asked.context == caller.context) {
    if (const auto shared = host_memory().use_shared(start, host_span, *asked.context, !up, caller.wait)) {
      const CUresult result = copy_in_place(caller, *shared, host, device, rows, box.depth, up);
      if (!up && !caller.wait) note_host_memory_write(*asked.context, asked.stream);
      return result;
    }
  }
  // Pageable memory may be freed when the call returns, so the copy is waited for, as CUDA does.
  const bool wait = caller.wait || (!up && !host_memory().is_pinned(host_pointer(host.address), host_span));
  bool later = up && (written || host_functions_pending() || streams_held() ||
                      awaits_data_in(host_pointer(host.address), host_span));
  if (later && caller.wait) {
    if (const CUresult result = cuStreamSynchronize(caller.stream); result != CUDA_SUCCESS) return result;
    later = false;
  }
  const bool pinned = up && !caller.wait && host_memory().is_pinned(host_pointer(host.address), host_span);
  later = later && pinned;
  const Source source = pinned ? Source::kept : Source::reusable;
  for (uint64_t z = 0; z < box.depth; ++z) {
    const uint64_t device_address = device.address + z * device.slice;
    void* host_address = host_pointer(host.address + z * host.slice);
    const CUresult result =
        later ? copy_to_device_later(caller, device_address, host_address, rows)
        : up  ? copy_to_device(*caller.session, *caller.context, caller.stream, device_address, host_address,
                               rows,
                              caller.wait && !ends_first && z + 1 == box.depth ? CopyOrder::before_all
                                                                                : CopyOrder::in_stream,
                               source)
             : copy_from_device(*caller.session, *caller.context, caller.stream, host_address, device_address,
                                rows, wait);
    if (result != CUDA_SUCCESS) return result;
  }
  // After queueing: another thread's wait may clear the flag before that.
  if (!up && !wait) note_host_memory_write(*asked.context, asked.stream);
  if (ends_first) {
    if (!asked.stream) asked.context->writes_host_memory.store(false, std::memory_order_relaxed);
    return synchronize_stream(*caller.context, caller.stream);
  }
  return !up && caller.wait && compared_copies().any() ? compared_copies().after_other_wait() : CUDA_SUCCESS;
}

// Copies on one server. As with CUDA, a synchronous copy between two devices overlaps with no other work of
// either.
CUresult run_on_server(const Caller& caller, const CopyBox& box) {
  const auto owner = [&](uint64_t address) {
    Context* const side = side_context(*caller.context, address);
    return side ? side : caller.context;
  };
  Context* const from = owner(box.from.address);
  Context* const to = owner(box.to.address);
  const bool serialised = caller.wait && from->device != to->device;
  for (Context* const context : {from, to}) {
    const CUresult result = serialised ? synchronize_context(*context) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
  }
  const CUresult result = copy_on_server(*caller.context, caller.stream, box);
  // On return the program may change the memory that the copy reads.
  const bool reads_of_host =
      caller.wait && (mirrors().overlaps(box.from.address, span_of(box, box.from)) ||
                      (compared_copies().any() && compared_copies().host_of(box.from.address)));
  return result == CUDA_SUCCESS && (serialised || reads_of_host)
             ? synchronize_stream(*caller.context, caller.stream)
             : result;
}

CUresult run(Caller caller, CopyBox box) {
  if (const CUresult result = enter(caller); result != CUDA_SUCCESS) return result;
  if (box.width == 0 || box.height == 0 || box.depth == 0) return CUDA_SUCCESS;
  bool between_servers = false;
  if (const CUresult result = check_ends(box, *caller.session, between_servers); result != CUDA_SUCCESS)
    return result;
  if (const auto captured = capture_copy(caller, box, between_servers)) [[unlikely]]
    return *captured;
  Mirrors::PendingWrite use;
  if (mirrors().any() || compared_copies().any()) [[unlikely]] {
    if (const CUresult result = before_copy(caller, box, use); result != CUDA_SUCCESS) return result;
  }
  if (between_servers) return run_between_servers(caller, box);
  if (!box.from.on_device && !box.to.on_device) return host_to_host(caller, box);
  if (box.from.on_device && box.to.on_device) return run_on_server(caller, box);
  if (Context* const side =
          side_context(*caller.context, box.to.on_device ? box.to.address : box.from.address)) [[unlikely]] {
    Caller on_side{caller.session, side, nullptr, caller.wait};
    const CopyEnd& host = box.to.on_device ? box.from : box.to;
    // Kernels use memory that the server maps in the order of their streams, which a copy over the connection
    // does not preserve. So wait before and after.
    CUresult result = CUDA_SUCCESS;
    if (host_memory().use_shared(host_pointer(host.address), span_of(box, host), *caller.context, false,
                                 true)) {
      result = synchronize_stream(*caller.context, caller.stream);
      on_side.wait = true;
    }
    if (result == CUDA_SUCCESS)
      result = fork_to_side_stream(*caller.context, caller.stream, *side, &on_side.stream);
    if (result == CUDA_SUCCESS) result = run_host_device(caller, on_side, box);
    return result == CUDA_SUCCESS && !caller.wait
               ? join_side_stream(*caller.context, caller.stream, *side, on_side.stream)
               : result;
  }
  return run_host_device(caller, caller, box);
}

CopyBox line(bool from_device, uint64_t from, bool to_device, uint64_t to, uint64_t bytes) {
  CopyBox box;
  box.from = {from_device, from, bytes, bytes};
  box.to = {to_device, to, bytes, bytes};
  box.width = bytes;
  return box;
}

CUresult to_device(CUdeviceptr to, const void* from, size_t bytes, CUstream stream, bool wait) {
  return guarded(
      [&] { return run({.stream = stream, .wait = wait}, line(false, address_of(from), true, to, bytes)); });
}
CUresult from_device(void* to, CUdeviceptr from, size_t bytes, CUstream stream, bool wait) {
  return guarded(
      [&] { return run({.stream = stream, .wait = wait}, line(true, from, false, address_of(to), bytes)); });
}
CUresult on_device(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, bool wait) {
  return guarded([&] { return run({.stream = stream, .wait = wait}, line(true, from, true, to, bytes)); });
}
CUresult anywhere(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, bool wait) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    return run({.stream = stream, .wait = wait}, line(is_device(from), from, is_device(to), to, bytes));
  });
}

// Makes an end of cuMemcpy2D or 3D; arrays are handled in client/memory/array.h.
CUresult make_end(CUmemorytype type, const void* host, CUdeviceptr device, uint64_t pitch, uint64_t slice,
                  uint64_t offset, CopyEnd* end) {
  switch (type) {
    case CU_MEMORYTYPE_HOST: *end = {false, address_of(host) + offset, pitch, slice}; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_DEVICE: *end = {true, device + offset, pitch, slice}; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_UNIFIED:
      *end = {is_device(device), device + offset, pitch, slice};
      return CUDA_SUCCESS;
    case CU_MEMORYTYPE_ARRAY: break;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_2d(const CUDA_MEMCPY2D* copy, CUstream stream, bool wait) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!copy) return CUDA_ERROR_INVALID_VALUE;
    if (names_array(copy->srcMemoryType, copy->dstMemoryType))
      return copy_array(cuda::boxed(*copy), stream, wait);
    CopyBox box;
    box.width = copy->WidthInBytes;
    box.height = copy->Height;
    const uint64_t from_pitch = copy->srcPitch ? copy->srcPitch : box.width + copy->srcXInBytes;
    const uint64_t to_pitch = copy->dstPitch ? copy->dstPitch : box.width + copy->dstXInBytes;
    uint64_t from_offset = 0, to_offset = 0;
    if (!offset_of(copy->srcXInBytes, copy->srcY, from_pitch, 0, 0, &from_offset) ||
        !offset_of(copy->dstXInBytes, copy->dstY, to_pitch, 0, 0, &to_offset)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result =
        make_end(copy->srcMemoryType, copy->srcHost, copy->srcDevice, from_pitch, 0, from_offset, &box.from);
    if (result != CUDA_SUCCESS) return result;
    result = make_end(copy->dstMemoryType, copy->dstHost, copy->dstDevice, to_pitch, 0, to_offset, &box.to);
    if (result != CUDA_SUCCESS) return result;
    return run({.stream = stream, .wait = wait}, box);
  });
}

CUresult make_box(const CUDA_MEMCPY3D& copy, CopyBox& box) {
  if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  box.width = copy.WidthInBytes;
  box.height = copy.Height;
  box.depth = copy.Depth;
  // 0 means rows and slices without gaps.
  const uint64_t from_pitch = copy.srcPitch ? copy.srcPitch : box.width + copy.srcXInBytes;
  const uint64_t to_pitch = copy.dstPitch ? copy.dstPitch : box.width + copy.dstXInBytes;
  uint64_t from_slice = 0, to_slice = 0, from_offset = 0, to_offset = 0;
  if (__builtin_mul_overflow(from_pitch, copy.srcHeight ? copy.srcHeight : copy.srcY + box.height,
                             &from_slice) ||
      __builtin_mul_overflow(to_pitch, copy.dstHeight ? copy.dstHeight : copy.dstY + box.height, &to_slice) ||
      !offset_of(copy.srcXInBytes, copy.srcY, from_pitch, copy.srcZ, from_slice, &from_offset) ||
      !offset_of(copy.dstXInBytes, copy.dstY, to_pitch, copy.dstZ, to_slice, &to_offset)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = make_end(copy.srcMemoryType, copy.srcHost, copy.srcDevice, from_pitch, from_slice,
                                   from_offset, &box.from);
  if (result != CUDA_SUCCESS) return result;
  return make_end(copy.dstMemoryType, copy.dstHost, copy.dstDevice, to_pitch, to_slice, to_offset, &box.to);
}

CUresult copy_3d(const CUDA_MEMCPY3D* copy, CUstream stream, bool wait) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!copy) return CUDA_ERROR_INVALID_VALUE;
    if (names_array(copy->srcMemoryType, copy->dstMemoryType)) return copy_array(*copy, stream, wait);
    CopyBox box;
    const CUresult result = make_box(*copy, box);
    return result == CUDA_SUCCESS ? run({.stream = stream, .wait = wait}, box) : result;
  });
}

CUresult peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
              CUstream stream, bool wait) {
  return guarded([&]() -> CUresult {
    Caller caller{.stream = stream, .wait = wait};
    if (const CUresult result = enter(caller); result != CUDA_SUCCESS) return result;
    Context* const source = handles().find_as<Context>(Kind::context, cuda::handle_bits(from_context));
    Context* const target = handles().find_as<Context>(Kind::context, cuda::handle_bits(to_context));
    if (!source || !target) return CUDA_ERROR_INVALID_CONTEXT;
    if (const auto captured =
            capture_copy(caller, line(true, from, true, to, bytes),
                         source->session != caller.session || target->session != caller.session)) {
      return *captured;
    }
    if (source->session == caller.session && target->session == caller.session) {
      // CUDA overlaps a synchronous peer copy with no work of the three contexts.
      for (Context* const context : {source, target}) {
        const CUresult result = wait ? synchronize_context(*context) : CUDA_SUCCESS;
        if (result != CUDA_SUCCESS) return result;
      }
      Mirrors::PendingWrite use;
      if (mirrors().any() || compared_copies().any()) [[unlikely]] {
        if (const CUresult result = before_copy(caller, line(true, from, true, to, bytes), use);
            result != CUDA_SUCCESS)
          return result;
      }
      const CUresult result = rows::cuMemcpyPeerAsync::at(
          {caller.session, caller.context}, {to, to_context, from, from_context, bytes, caller.stream});
      return result == CUDA_SUCCESS && wait ? synchronize_stream(*caller.context, caller.stream) : result;
    }
    if (bytes == 0) return CUDA_SUCCESS;
    if (!is_device_range_mapped(*source->session, from, bytes) ||
        !is_device_range_mapped(*target->session, to, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    CopyBox box = line(true, from, true, to, bytes);
    box.from.context = source;
    box.to.context = target;
    return copy_between_servers(*caller.context, caller.stream, box, wait);
  });
}

}  // namespace

CUresult gpupool::client::make_copy(const CUDA_MEMCPY3D& params, Context& context, CopyWork* work) {
  if (names_array(params.srcMemoryType, params.dstMemoryType)) return make_array_copy(params, context, work);
  CopyWork made{params, {}};
  if (const CUresult result = make_box(params, made.box); result != CUDA_SUCCESS) return result;
  bool between_servers = false;
  if (made.box.width != 0 && made.box.height != 0 && made.box.depth != 0) {
    if (const CUresult result = check_ends(made.box, *context.session, between_servers);
        result != CUDA_SUCCESS)
      return result;
  }
  if (between_servers) return CUDA_ERROR_NOT_SUPPORTED;
  *work = made;
  return CUDA_SUCCESS;
}

namespace {

// True if the memory of a host end still exists; it may have been unmapped since the node was made.
bool is_there(const CopyEnd& end, const CopyBox& box) {
  if (end.on_device || box.width == 0 || box.height == 0 || box.depth == 0) return true;
  const uint64_t bytes = (box.depth - 1) * end.slice + (box.height - 1) * end.pitch + box.width;
  if (is_host_range_mapped(end.address, bytes)) return true;
  log_error(
      "a graph copies %llu bytes of the program's memory at %p, which is no longer mapped: the copy was "
      "skipped",
      static_cast<unsigned long long>(bytes), reinterpret_cast<void*>(static_cast<uintptr_t>(end.address)));
  return false;
}

}  // namespace

uint64_t gpupool::client::copy_now(Context& context, const CopyBox& box) {
  if (!is_there(box.from, box) || !is_there(box.to, box)) {
    context.late_error = CUDA_ERROR_INVALID_VALUE;
    return 0;
  }
  if (!box.from.on_device && !box.to.on_device) {
    move_rows(box);
    return 0;
  }
  CUstream own = nullptr;
  const bool up = box.to.on_device;
  const CopyEnd& host = up ? box.from : box.to;
  const CopyEnd& device = up ? box.to : box.from;
  Context* const side = side_context(context, device.address);
  Context& place = side ? *side : context;
  CUresult result = internal_stream(place, &own);
  const Rows rows = make_rows(box.width, box.height, host.pitch, device.pitch);
  for (uint64_t z = 0; z < box.depth && result == CUDA_SUCCESS; ++z) {
    void* const memory = host_pointer(host.address + z * host.slice);
    const uint64_t address = device.address + z * device.slice;
    // Must not wait for other streams' work: they may be waiting for this copy.
    result = up ? copy_to_device(*place.session, place, own, address, memory, rows, CopyOrder::passes_others,
                                 Source::kept)
                : copy_from_device(*place.session, place, own, memory, address, rows, true);
  }
  if (result != CUDA_SUCCESS) context.late_error = result;
  return result == CUDA_SUCCESS && up ? cuda::handle_bits(own) : 0;
}

// The contexts are ignored: an address identifies its memory.
CUresult gpupool::cuda::copy_box_between(const CUDA_MEMCPY3D& copy, CUcontext, CUcontext, CUstream stream,
                                         bool wait) {
  return copy_3d(&copy, stream, wait);
}

// Defines a function, its per-thread-stream twin, and their common body.
#define SYNC_COPY(function, parameters, arguments, body) \
  CUDA_EXPORT CUresult function parameters {             \
    const CUstream stream = nullptr;                     \
    return body;                                         \
  }                                                      \
  CUDA_EXPORT CUresult function##_ptds parameters {      \
    const CUstream stream = CU_STREAM_PER_THREAD;        \
    return body;                                         \
  }
#define UNPACK(...) __VA_ARGS__
#define ASYNC_COPY(function, parameters, body)                               \
  CUDA_EXPORT CUresult function(UNPACK parameters, CUstream stream) {        \
    return body;                                                             \
  }                                                                          \
  CUDA_EXPORT CUresult function##_ptsz(UNPACK parameters, CUstream stream) { \
    stream = or_per_thread(stream);                                          \
    return body;                                                             \
  }

SYNC_COPY(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), ,
          anywhere(to, from, bytes, stream, true))
SYNC_COPY(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t bytes), ,
          to_device(to, from, bytes, stream, true))
SYNC_COPY(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t bytes), ,
          from_device(to, from, bytes, stream, true))
SYNC_COPY(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), ,
          on_device(to, from, bytes, stream, true))
SYNC_COPY(cuMemcpy2D_v2, (const CUDA_MEMCPY2D* copy), , copy_2d(copy, stream, true))
SYNC_COPY(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D* copy), , copy_2d(copy, stream, true))
SYNC_COPY(cuMemcpy3D_v2, (const CUDA_MEMCPY3D* copy), , copy_3d(copy, stream, true))
SYNC_COPY(cuMemcpyPeer,
          (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes), ,
          peer(to, to_context, from, from_context, bytes, stream, true))

ASYNC_COPY(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
           anywhere(to, from, bytes, stream, false))
ASYNC_COPY(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t bytes),
           to_device(to, from, bytes, stream, false))
ASYNC_COPY(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes),
           from_device(to, from, bytes, stream, false))
ASYNC_COPY(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
           on_device(to, from, bytes, stream, false))
ASYNC_COPY(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* copy), copy_2d(copy, stream, false))
ASYNC_COPY(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D* copy), copy_3d(copy, stream, false))
ASYNC_COPY(cuMemcpyPeerAsync,
           (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
           peer(to, to_context, from, from_context, bytes, stream, false))
