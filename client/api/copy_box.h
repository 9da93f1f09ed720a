// The geometry of a copy's ends, and the check that they are valid memory. Used by the calls that copy at
// once or make copy nodes. Any thread.
#pragma once
#include "client/copies/server_copy.h"
#include "client/session/call.h"

namespace gpupool::client {

inline uint64_t address_of(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}
// True for device memory of any server.
inline bool is_device(uint64_t address) {
  return session_of(address, current_session()) != nullptr;
}

// One row.
CopyBox make_box(bool from_device, uint64_t from, bool to_device, uint64_t to, uint64_t bytes);
// From the parameters of cuMemcpy2D and cuMemcpy3D; arrays are handled in client/memory/array.h.
CUresult make_box(const CUDA_MEMCPY2D& copy, CopyBox& box);
CUresult make_box(const CUDA_MEMCPY3D& copy, CopyBox& box);
// The parameters that cuGraphMemcpyNodeGetParams returns for a captured copy.
CUDA_MEMCPY3D describe(const CopyBox& box);

// Bytes from the first to the last; UINT64_MAX on overflow, which no memory contains. The box is not empty.
uint64_t span_of(const CopyBox& box, const CopyEnd& end);
// Checks that both ends are valid memory, and corrects their kinds. Ends on other servers than `own` get a
// context there. The box is not empty.
CUresult check_ends(CopyBox& box, Session& own, bool& between_servers);

// Copies within host memory.
void move_rows(const CopyBox& box);

}  // namespace gpupool::client
