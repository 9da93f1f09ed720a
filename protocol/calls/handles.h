// Handles as they travel: minted by the client, looked up by the worker, never dereferenced by either.
//
// 64 bits: 0 | kind (7) | generation (20) | index (32) | 0000. The low four bits are zero, as in a pointer,
// because programs (PyTorch's StreamId) rely on that. Stream handles 0, 1 and 2 are CUDA's special streams.
#pragma once
#include <cstdint>

namespace gpupool::cuda {

enum class Kind : uint8_t {
  none = 0,
  context = 1,
  module = 2,
  library = 3,
  function = 4,
  kernel = 5,
  stream = 6,
  event = 7,
  memory_pool = 8,
  memory = 9,  // cuMemCreate
  graph = 10,
  graph_exec = 11,
  graph_node = 12,
  upload = 13,  // not CUDA's: a module image that is being uploaded
  linker = 14,
  graph_condition = 15,
  array = 16,
  mipmapped_array = 17,
  texture_reference = 18,
  surface_reference = 19,
  green_context = 24,         // of the client alone: the server has only its context
  resource_description = 25,  // cuDevResourceGenerateDesc
};

constexpr uint64_t make_handle(Kind kind, uint32_t generation, uint32_t index) {
  return uint64_t{static_cast<uint8_t>(kind)} << 56 | uint64_t{generation & 0xfffff} << 36 |
         uint64_t{index} << 4;
}
constexpr Kind kind_of(uint64_t handle) {
  return static_cast<Kind>(handle >> 56);
}
constexpr uint32_t index_of(uint64_t handle) {
  return static_cast<uint32_t>(handle >> 4);
}
constexpr bool is_special_stream(uint64_t handle) {
  return handle <= 2;
}

}  // namespace gpupool::cuda
