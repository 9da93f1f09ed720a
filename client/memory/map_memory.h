// Sends the command that maps device memory (wire::MapMemory). Used by the allocation calls and PoolMemory.
// Any thread; blocks for a round trip.
#pragma once
#include "client/session/call.h"
#include "protocol/wire/commands.h"

namespace gpupool::client {

// Waits for the reply, so that the call that exceeds the memory returns CUDA_ERROR_OUT_OF_MEMORY: allocators
// react to it by freeing their caches and retrying. Only the server knows how much memory contexts, modules
// and other processes use. *mapped: the memory was mapped, even if the result is an error (an earlier
// call's). `peers`: bit mask of further server devices that get access.
inline CUresult map_memory(Session& session, Context& context, const Device& device,
                           const AddressSpace::Placement& place, uint32_t peers, bool* mapped) {
  const wire::MapMemory body{place.map_address, place.map_size, device.server_ordinal, peers};
  wire::Buffer reply;
  const CUresult result = session.call(wire::Command::map_memory, &context, body, reply);
  *mapped = reply.size() == sizeof body.address;
  return *mapped || result != CUDA_SUCCESS ? result : CUDA_ERROR_UNKNOWN;  // a success without an answer
}

}  // namespace gpupool::client
