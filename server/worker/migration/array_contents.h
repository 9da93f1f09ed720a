// The contents of arrays. They have no addresses, so no rounds hash them: the source sends them in the last
// part of a migration, without zeros, because new arrays are zero at the target. Executor's thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "common/result.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/wire/migration.h"
#include "server/worker/memory/scrubber.h"

namespace gpupool::worker {

class Session;
class TargetStream;

// Visits boxes that together are the array, each of at most `most` bytes, or one texel.
Result<void> for_each_box(const CUDA_ARRAY3D_DESCRIPTOR& shape, uint64_t most,
                          const std::function<Result<void>(const Scrubber::Box&)>& visit);

// Sends the contents of all arrays of the session, which must be idle. Adds the bytes to `sent`.
Result<void> send_arrays(Session& session, TargetStream& target, uint64_t* sent);

// At the target: writes a part of an array. CUDA_ERROR_INVALID_VALUE: the array has no such part.
CUresult write_part(Session& session, const wire::FillArray& part, std::span<const std::byte> bytes);

}  // namespace gpupool::worker
