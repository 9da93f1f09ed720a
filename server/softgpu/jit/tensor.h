// Tensor maps, the copies between global and shared memory that use them, and bulk copies and reductions
// without one.
//
// A map is 128 bytes written by the driver's cuTensorMapEncode functions. Kernels may keep and change it
// anywhere, so it is checked at each use: an invalid map ends the grid with CUDA_ERROR_ILLEGAL_INSTRUCTION,
// as does one with an unsupported mode (im2col, interleave, padded element types,
// CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B and _128B_ATOM_64B). Copies complete at once. Called by
// generated code, on the thread that runs the block.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {

constexpr uint32_t kMaxTensorRank = 5;

enum class TensorForm : uint8_t { tiled = 1, im2col, im2col_wide };

struct TensorMap {
  uint64_t address;
  uint64_t strides[kMaxTensorRank - 1];  // bytes; of all dimensions except the first
  uint32_t sizes[kMaxTensorRank];        // minus 1
  uint8_t element_strides[kMaxTensorRank];
  TensorForm form;
  uint8_t type, rank, interleave, swizzle, promotion, fill, mode;  // values of CUtensorMap... enumerations
  int16_t lower[3], upper[3];
  uint16_t box[kMaxTensorRank];  // tiled: box dimensions; im2col: channels and pixels in the first two
};
constexpr uint32_t kTensorMapBytes = 128;
static_assert(sizeof(TensorMap) <= kTensorMapBytes);

// The operation applied to each element in memory; copy: overwrite.
enum class Reduction : uint32_t {
  copy,
  add,
  minimum,
  maximum,
  increment,
  decrement,
  conjunction,
  disjunction,
  difference
};
enum class ReducedType : uint32_t { u32, s32, u64, s64, f16, bf16, f32, f64 };
std::optional<Reduction> find_reduction(std::string_view name);  // "add", "min", ...

// The rows of a copy: those of a box, or four rows of a matrix with separate coordinates (.tile::gather4,
// .tile::scatter4).
enum class TensorRows : uint32_t { box, four };
enum class TensorField : uint32_t {
  global_address,
  rank,
  box_dim,
  global_dim,
  global_stride,
  element_stride,
  elemtype,
  interleave_layout,
  swizzle_mode,
  fill_mode
};
std::optional<TensorField> find_tensor_field(std::string_view name);

extern "C" {
// `to` and `barrier` are addresses in shared::cluster space. ranks: mask of the blocks of the cluster that
// receive the data; 0: the block that `to` names.
void softgpu_tensor_load(ThreadContext*, uint64_t map, const int32_t* coordinates, uint32_t rank,
                         TensorRows rows, uint64_t to, uint64_t barrier, uint32_t ranks);
void softgpu_tensor_store(ThreadContext*, uint64_t map, const int32_t* coordinates, uint32_t rank,
                          TensorRows rows, uint64_t from, Reduction reduction);
void softgpu_tensormap_replace(ThreadContext*, uint64_t map, TensorField field, uint32_t ordinal,
                               uint64_t value);
// Both addresses are generic; ranges in shared memory have been checked to lie in their window.
void softgpu_bulk_reduce(ThreadContext*, uint64_t to, uint64_t from, uint64_t bytes, Reduction reduction,
                         ReducedType type);
// Copies bytes; bit n of `mask` selects byte n of each 16 bytes.
void softgpu_bulk_copy_masked(ThreadContext*, uint64_t to, uint64_t from, uint64_t bytes, uint16_t mask);
}

}  // namespace gpupool::softgpu
