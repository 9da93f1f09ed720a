// Arrays and mipmapped arrays as the client knows them: their descriptors are answered, and copies to and
// from them are checked, without the server. Used by the calls in client/api/. Thread-safe.
#pragma once
#include <mutex>
#include <vector>

#include "client/session/call.h"

namespace gpupool::client {

struct CopyWork;  // client/graphs/graph.h

struct Array : Object {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  bool is_part = false;  // a mipmap level or plane; destroyed with its parent array
};

struct MipmappedArray : Object {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  std::mutex mutex;
  std::vector<uint64_t> levels;  // handles of the levels that were asked for, else 0
};

inline bool names_array(CUmemorytype from, CUmemorytype to) {
  return from == CU_MEMORYTYPE_ARRAY || to == CU_MEMORYTYPE_ARRAY;
}

// cuMemcpy3D and its variants where either side is an array. `stream` is as the program gave it, not
// resolved. Data between an array and the program's memory goes through a device buffer, piece by piece, in
// the order of the stream.
CUresult copy_array(const CUDA_MEMCPY3D& copy, CUstream stream, bool wait);
// Like make_copy() and copy_now() of client/graphs/graph.h. CUDA_ERROR_NOT_SUPPORTED: the copy involves
// several servers.
CUresult make_array_copy(const CUDA_MEMCPY3D& copy, Context& context, CopyWork* work);
uint64_t copy_array_now(Context& context, const CUDA_MEMCPY3D& copy);

}  // namespace gpupool::client
