#include "server/worker/migration/hidden_memory.h"

#include <algorithm>
#include <map>
#include <vector>

#include "protocol/calls/handles.h"
#include "protocol/calls/parameter.h"
#include "server/worker/migration/block_hash.h"
#include "server/worker/migration/target_stream.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

using cuda::Kind;

// The client's handles of the session's memory.
std::map<CUmemGenericAllocationHandle, uint64_t> memory_handles(Session& session) {
  std::map<CUmemGenericAllocationHandle, uint64_t> handles;
  session.history.for_each([&](const History::Entry& entry) {
    if (entry.effect.makes.empty()) return;
    const uint64_t handle = entry.effect.makes.front();
    if (cuda::kind_of(handle) != Kind::memory) return;
    if (const auto memory = session.table.resolve(Kind::memory, handle))
      handles[cuda::handle_bits(*memory)] = handle;
  });
  return handles;
}

CUresult send_memory(Session& session, TargetStream& target, const VirtualMemory::Name& name,
                     wire::FillMemory part, bool skips_zeros, uint64_t* sent, Result<void>* status) {
  std::vector<std::byte> staged;
  return session.virtual_memory.visit(name, [&](CUdeviceptr place, uint64_t size, int device) {
    for (part.offset = 0; part.offset < size; part.offset += staged.size()) {
      staged.resize(std::min<uint64_t>(wire::kBulkChunkBytes, size - part.offset));
      const CUresult result =
          session.scrubber.copy_out(staged.data(), place + part.offset, staged.size(), device);
      if (result != CUDA_SUCCESS) return result;
      if (skips_zeros && is_all_zero(staged)) continue;
      *sent += staged.size();
      *status = target.send(wire::Command::fill_memory, 0, part, staged);
      if (!*status) break;
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace

Result<void> send_hidden_memory(Session& session, TargetStream& target, bool skips_zeros, uint64_t* sent) {
  const auto hidden = session.virtual_memory.hidden();
  if (hidden.empty()) return {};
  const auto handles = memory_handles(session);
  for (const VirtualMemory::Name& name : hidden) {
    wire::FillMemory part{0, name.address, 0};
    if (name.handle != 0) {
      const auto known = handles.find(name.handle);
      if (known == handles.end()) return Error{ErrorCode::invalid, "memory has no handle"};
      part = {known->second, 0, 0};
    }
    Result<void> status;
    const CUresult result = send_memory(session, target, name, part, skips_zeros, sent, &status);
    if (result != CUDA_SUCCESS)
      return Error{ErrorCode::unavailable, "reading memory that is not mapped: " + error_text(result)};
    if (!status) return status;
  }
  return {};
}

CUresult write_part(Session& session, const wire::FillMemory& part, std::span<const std::byte> bytes) {
  VirtualMemory::Name name{0, part.address};
  if (part.memory != 0) {
    if (cuda::kind_of(part.memory) != Kind::memory) return CUDA_ERROR_INVALID_HANDLE;
    const auto memory = session.table.resolve(Kind::memory, part.memory);
    if (!memory) return CUDA_ERROR_INVALID_HANDLE;
    name = {cuda::handle_bits(*memory), 0};
  }
  return session.virtual_memory.visit(name, [&](CUdeviceptr place, uint64_t size, int device) {
    if (bytes.empty() || part.offset > size || bytes.size() > size - part.offset)
      return CUDA_ERROR_INVALID_VALUE;
    return session.scrubber.copy_in(place + part.offset, bytes.data(), bytes.size(), device);
  });
}

}  // namespace gpupool::worker
