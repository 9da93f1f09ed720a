// Matrix instructions of a warp (mma, wmma, ldmatrix, stmatrix, movmatrix) in plain arithmetic. Called by
// generated code.
//
// Generated code encodes the instruction in one word and passes its registers as 32-bit words. The lanes of
// the warp meet in softgpu_warp_call, and the last one computes for all. Missing lanes count as zeros. Sums
// are computed in double precision and rounded once. Fragments of mma have the PTX ISA's layout; fragments of
// wmma are opaque, and here each lane holds consecutive elements of the row-major matrix.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {

enum class MatrixElement : uint8_t { f16, bf16, tf32, f32, f64, s8, u8, s4, u4, b1, s32, e4m3, e5m2 };
enum class MatrixPart : uint8_t { a, b, c };
// The layout of fragments; quads: the four small products of m8n8k4.
enum class MatrixLayout : uint8_t { mma, quads, wmma };

std::optional<MatrixElement> find_matrix_element(std::string_view name);
uint32_t bits_of(MatrixElement element);

struct MatrixOperation {
  MatrixLayout layout = MatrixLayout::mma;
  uint32_t m = 0, n = 0, k = 0;
  MatrixElement a = MatrixElement::f16, b = MatrixElement::f16, c = MatrixElement::f32,
                d = MatrixElement::f32;
  bool a_by_column = false, b_by_row = false;  // used by quads only
  bool saturates = false;
  bool uses_and = false;  // b1: and instead of xor

  uint64_t pack() const;
  static MatrixOperation unpack(uint64_t bits);
  bool is_known() const;  // one of the ISA's shapes with matching types
  MatrixElement element(MatrixPart part) const {
    return part == MatrixPart::a ? a : part == MatrixPart::b ? b : c;
  }
  uint32_t rows(MatrixPart part) const { return part == MatrixPart::b ? k : m; }
  uint32_t columns(MatrixPart part) const { return part == MatrixPart::a ? k : n; }
  // Number of 32-bit words that a lane holds of the matrix.
  uint32_t words(MatrixPart part) const;
  uint32_t result_words() const;
};

extern "C" {
// in: a, b and c one after the other; out: d.
void softgpu_mma(ThreadContext*, uint64_t operation, const uint32_t* in, uint32_t* out);
// `address` is generic. In shared memory the whole access must lie in [low, high); elsewhere both are 0.
void softgpu_wmma_load(ThreadContext*, uint64_t operation, MatrixPart part, uint32_t by_column,
                       uint64_t address, uint64_t low, uint64_t high, uint32_t stride, uint32_t* out);
void softgpu_wmma_store(ThreadContext*, uint64_t operation, uint32_t by_column, uint64_t address,
                        uint64_t low, uint64_t high, uint32_t stride, const uint32_t* in);
// Moves 1, 2 or 4 matrices of 8 x 8 16-bit elements; lanes 0 to 8 * count - 1 pass the addresses of their
// rows.
void softgpu_ldmatrix(ThreadContext*, uint32_t count, uint32_t transposes, uint64_t address, uint64_t low,
                      uint64_t high, uint32_t* out);
void softgpu_stmatrix(ThreadContext*, uint32_t count, uint32_t transposes, uint64_t address, uint64_t low,
                      uint64_t high, const uint32_t* in);
uint32_t softgpu_movmatrix(ThreadContext*, uint32_t value);
}

}  // namespace gpupool::softgpu
