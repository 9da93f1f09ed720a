// Arrays, as the client remembers them: what their descriptors say is answered here, and copies are checked here. Any thread.
#pragma once
#include <mutex>
#include <vector>

#include "client/call.h"
#include "client/graph.h"

namespace gpupool::client {

struct Array : Object {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  bool is_part = false;  // a level or plane, which goes with the whole
};

struct MipmappedArray : Object {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  std::mutex mutex;
  std::vector<uint64_t> levels;  // handles of those that were asked for, or 0
};

inline bool names_array(CUmemorytype from, CUmemorytype to) { return from == CU_MEMORYTYPE_ARRAY || to == CU_MEMORYTYPE_ARRAY; }

// cuMemcpy3D and the like where an end is an array; `stream` as the program gave it. Between an array and the program's memory
// the data goes through device memory, a piece at a time, in the order of the stream.
CUresult copy_array(const CUDA_MEMCPY3D& copy, CUstream stream, bool wait);
// As make_copy() and copy_now() of client/graph.h. CUDA_ERROR_NOT_SUPPORTED: it reaches other servers.
CUresult make_array_copy(const CUDA_MEMCPY3D& copy, Context& context, CopyWork* work);
uint64_t copy_array_now(Context& context, const CUDA_MEMCPY3D& copy);

}  // namespace gpupool::client
