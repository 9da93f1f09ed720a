// Checks the arguments of cuCheckpointProcess..., for the client library and softgpu. Header-only, no state,
// any thread.
#pragma once
#include <algorithm>
#include <cstddef>

#include "protocol/driver/cuda_header.h"

#if CUDA_VERSION >= 12080
namespace gpupool::cuda {

// True if all bytes are zero, as reserved ones must be.
inline bool are_zero(const void* bytes, size_t size) {
  const auto* const first = static_cast<const unsigned char*>(bytes);
  return std::all_of(first, first + size, [](unsigned char byte) { return byte == 0; });
}

// Null pointers are valid: no options.
inline bool fits(const CUcheckpointLockArgs* args) {
  return !args || (args->reserved0 == 0 && are_zero(args->reserved1, sizeof args->reserved1));
}
inline bool fits(const CUcheckpointCheckpointArgs* args) {
  return !args || are_zero(args, sizeof *args);
}
inline bool fits(const CUcheckpointUnlockArgs* args) {
  return !args || are_zero(args, sizeof *args);
}

// `known(uuid)` says whether a GPU has this UUID. CUDA_ERROR_NOT_SUPPORTED: memory would move to another GPU
// than it was on.
template <class Known>
CUresult check_restore(const CUcheckpointRestoreArgs* args, [[maybe_unused]] const Known& known) {
  if (!args) return CUDA_SUCCESS;
#if CUDA_VERSION >= 13000
  if (!are_zero(args->reserved, sizeof args->reserved) || args->reserved1 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (args->gpuPairsCount != 0 && !args->gpuPairs) return CUDA_ERROR_INVALID_VALUE;
  bool same = true;
  for (unsigned i = 0; i < args->gpuPairsCount; ++i) {
    const CUcheckpointGpuPair& pair = args->gpuPairs[i];
    if (!known(pair.oldUuid) || !known(pair.newUuid)) return CUDA_ERROR_INVALID_VALUE;
    same = same &&
           std::equal(pair.oldUuid.bytes, pair.oldUuid.bytes + sizeof pair.oldUuid.bytes, pair.newUuid.bytes);
  }
  return same ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
#else
  return are_zero(args, sizeof *args) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
#endif
}

}  // namespace gpupool::cuda
#endif
