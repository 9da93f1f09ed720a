// The contents of memory of cuMemCreate that is not mapped where its own device may read and write it:
// allocated but not mapped, mapped in part, or without access. The rounds do not see it, so the source sends
// it in the last part of a migration. Executor's thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/wire/migration.h"

namespace gpupool::worker {

class Session;
class TargetStream;

// Sends all of this memory; the session must be idle. `skips_zeros`: the memory is zero at the target. Adds
// the bytes to `sent`.
Result<void> send_hidden_memory(Session& session, TargetStream& target, bool skips_zeros, uint64_t* sent);

// At the target: writes a part of memory. CUDA_ERROR_INVALID_VALUE: there is no such part.
CUresult write_part(Session& session, const wire::FillMemory& part, std::span<const std::byte> bytes);

}  // namespace gpupool::worker
