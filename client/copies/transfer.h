// Copies between this process and the device, as rows: the basis of all cuMemcpy calls. Thread-safe.
#pragma once
#include "client/copies/copy_route.h"
#include "client/session/call.h"
#include "protocol/wire/rows.h"

namespace gpupool::client {

struct Rows {
  uint64_t width = 0;  // bytes
  uint64_t count = 0;
  uint64_t host_pitch = 0;
  uint64_t device_pitch = 0;
};
// Merges rows without gaps on both sides into one row.
inline Rows make_rows(uint64_t width, uint64_t count, uint64_t host_pitch, uint64_t device_pitch) {
  wire::join_rows(width, count, host_pitch, device_pitch);
  return count == 1 ? Rows{width, 1, width, width} : Rows{width, count, host_pitch, device_pitch};
}

// `commands`: for copies for which a stream is held. On the bulk connections their data could queue behind
// that of copies in the held stream, which is a deadlock. `passes_others` copies use it, too.
enum class Lane { bulk, commands };
// The command is queued, and the data sent or posted, when it returns. `stream` is resolved.
CUresult copy_to_device(Session& session, Context& context, CUstream stream, uint64_t to, const void* from,
                        const Rows& rows, CopyOrder order, Source source, Lane lane = Lane::bulk);
// Copies between the device and memory that the server maps too (HostMemory::use_shared), in the order of the
// stream.
CUresult copy_shared(Session& session, Context& context, CUstream stream, uint64_t memory, uint64_t offset,
                     uint64_t device, const Rows& rows, bool to_device);
// Sends the program's changes of memory that kernels also use (mirrors.h, compared_copies.h), in the client's
// own stream: the stream of the work that needs them may wait for a host function that itself needs the data
// first. All later work of any stream is ordered behind it.
CUresult push_to_device(Context& context, uint64_t to, const void* from, uint64_t bytes);
// `wait`: returns when the data is there. Otherwise the data arrives before any later wait on the stream
// returns.
CUresult copy_from_device(Session& session, Context& context, CUstream stream, void* to, uint64_t from,
                          const Rows& rows, bool wait);

}  // namespace gpupool::client
