// Copies between this process and the device, as rows: the shape under every cuMemcpy.
#pragma once
#include "client/call.h"
#include "protocol/wire/rows.h"

namespace gpupool::client {

struct Rows {
  uint64_t width = 0;  // bytes per row
  uint64_t count = 0;
  uint64_t host_pitch = 0;
  uint64_t device_pitch = 0;
};
// Rows without gaps on both sides are one.
inline Rows make_rows(uint64_t width, uint64_t count, uint64_t host_pitch, uint64_t device_pitch) {
  wire::join_rows(width, count, host_pitch, device_pitch);
  return count == 1 ? Rows{width, 1, width, width} : Rows{width, count, host_pitch, device_pitch};
}

// The data is on its way when this returns. `stream` is resolved.
enum class CopyOrder {
  in_stream,
  before_all,     // no stream gets past the copy with what it is given later, as if the copy were done now
  passes_others,  // copies that were to be done before all do not hold this one up
};
// `commands`: for a copy that a stream is held for. On the bulk connections its data could be behind that of copies in the held stream. Copies
// that pass others go that way, too.
enum class Lane { bulk, commands };
enum class Source {
  reusable,  // when this returns, the host memory may be reused
  kept,      // pinned: it stays as it is until the stream is past the copy
};
CUresult copy_to_device(Session& session, Context& context, CUstream stream, uint64_t to, const void* from,
                        const Rows& rows, CopyOrder order, Source source, Lane lane = Lane::bulk);
// Between the device and memory that the server maps too (host_memory.h, use_shared), in the order of the stream.
CUresult copy_shared(Session& session, Context& context, CUstream stream, uint64_t memory, uint64_t offset, uint64_t device,
                     const Rows& rows, bool to_device);
// Sends what the program has written to memory that kernels use, too (mirrors.h, shadows.h). It goes in the client's own stream: the stream of the work
// that needs it may be waiting for a host function, which may need it before. All work that any stream gets later comes after it.
CUresult push_to_device(Context& context, uint64_t to, const void* from, uint64_t bytes);
// wait: return when the data is there; otherwise it arrives before any later wait on the stream returns.
CUresult copy_from_device(Session& session, Context& context, CUstream stream, void* to, uint64_t from,
                          const Rows& rows, bool wait);

}  // namespace gpupool::client
