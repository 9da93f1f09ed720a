// Tensor maps, and the copies between global and shared memory that work by them; bulk copies and reductions without one.
//
// A map is 128 bytes that the driver's cuTensorMapEncode... writes and kernels may keep anywhere, so what it says is checked
// at each use: a map that is none ends the grid with CUDA_ERROR_ILLEGAL_INSTRUCTION, as does one whose mode softgpu does not
// have (im2col, interleaved, elements with gaps, and the swizzles of 32-byte atoms that flip and of 64-byte atoms). All is
// done at once. Called by generated code, on the thread that runs the block.
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
  uint64_t strides[kMaxTensorRank - 1];  // bytes; of all dimensions but the first
  uint32_t sizes[kMaxTensorRank];        // less 1
  uint8_t element_strides[kMaxTensorRank];
  TensorForm form;
  uint8_t type, rank, interleave, swizzle, promotion, fill, mode;  // CUtensorMap...
  int16_t lower[3], upper[3];
  uint16_t box[kMaxTensorRank];  // tiled; else channels and pixels are the first two
};
constexpr uint32_t kTensorMapBytes = 128;
static_assert(sizeof(TensorMap) <= kTensorMapBytes);

// What is done to memory with each element; copy: it is overwritten.
enum class Reduction : uint32_t { copy, add, minimum, maximum, increment, decrement, conjunction, disjunction, difference };
enum class ReducedType : uint32_t { u32, s32, u64, s64, f16, bf16, f32, f64 };
std::optional<Reduction> find_reduction(std::string_view name);  // "add", "min", ...

// The rows of a box are one after the other, or four of a matrix with coordinates of their own (.tile::gather4, ::scatter4).
enum class TensorRows : uint32_t { box, four };
enum class TensorField : uint32_t {
  global_address, rank, box_dim, global_dim, global_stride, element_stride, elemtype, interleave_layout, swizzle_mode, fill_mode
};
std::optional<TensorField> find_tensor_field(std::string_view name);

extern "C" {
// `to` and `barrier` are addresses in shared::cluster space. ranks: the blocks of the cluster that get it; 0: as `to` says.
void softgpu_tensor_load(ThreadContext*, uint64_t map, const int32_t* coordinates, uint32_t rank, TensorRows rows,
                         uint64_t to, uint64_t barrier, uint32_t ranks);
void softgpu_tensor_store(ThreadContext*, uint64_t map, const int32_t* coordinates, uint32_t rank, TensorRows rows,
                          uint64_t from, Reduction reduction);
void softgpu_tensormap_replace(ThreadContext*, uint64_t map, TensorField field, uint32_t ordinal, uint64_t value);
// Both addresses are generic; what lies in shared memory is known to lie in its window.
void softgpu_bulk_reduce(ThreadContext*, uint64_t to, uint64_t from, uint64_t bytes, Reduction reduction, ReducedType type);
// A copy in which bit n of `mask` says whether byte n of each 16 is written.
void softgpu_bulk_copy_masked(ThreadContext*, uint64_t to, uint64_t from, uint64_t bytes, uint16_t mask);
}

}  // namespace gpupool::softgpu
