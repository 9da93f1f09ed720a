// Copies that are nodes of graphs (client/graphs/graph.h).
#include "client/api/copy_box.h"
#include "client/copies/transfer.h"
#include "client/graphs/graph.h"
#include "client/memory/array.h"
#include "client/memory/host_memory.h"
#include "client/memory/host_range.h"
#include "client/process/log.h"
#include "client/streams/host_function.h"
#include "client/streams/side_stream.h"

namespace gpupool::client {
namespace {

// True if the memory of a host end still exists; it may have been unmapped since the node was made.
bool is_there(const CopyEnd& end, const CopyBox& box) {
  if (end.on_device || is_empty(box)) return true;
  const uint64_t bytes = (box.depth - 1) * end.slice + (box.height - 1) * end.pitch + box.width;
  if (is_host_range_mapped(end.address, bytes)) return true;
  log_error(
      "a graph copies %llu bytes of the program's memory at %p, which is no longer mapped: the copy was "
      "skipped",
      static_cast<unsigned long long>(bytes), reinterpret_cast<void*>(static_cast<uintptr_t>(end.address)));
  return false;
}

}  // namespace

CUresult make_copy(const CUDA_MEMCPY3D& params, Context& context, CopyWork* work) {
  if (names_array(params.srcMemoryType, params.dstMemoryType)) return make_array_copy(params, context, work);
  CopyWork made{params, {}};
  if (const CUresult result = make_box(params, made.box); result != CUDA_SUCCESS) return result;
  bool between_servers = false;
  if (!is_empty(made.box)) {
    if (const CUresult result = check_ends(made.box, *context.session, between_servers);
        result != CUDA_SUCCESS)
      return result;
  }
  if (between_servers) return CUDA_ERROR_NOT_SUPPORTED;
  *work = made;
  return CUDA_SUCCESS;
}

uint64_t copy_now(Context& context, const CopyBox& box) {
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

}  // namespace gpupool::client
