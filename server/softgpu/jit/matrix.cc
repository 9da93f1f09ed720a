#include "server/softgpu/jit/matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "server/softgpu/jit/decoded.h"
#include "server/softgpu/jit/narrow_float.h"
#include "server/softgpu/jit/support.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

struct ElementRow {
  std::string_view name;
  uint32_t bits;
};
// In the order of the enumeration.
constexpr ElementRow kElements[] = {{"f16", 16}, {"bf16", 16}, {"tf32", 32}, {"f32", 32}, {"f64", 64},
                                    {"s8", 8},   {"u8", 8},    {"s4", 4},    {"u4", 4},   {"b1", 1},
                                    {"s32", 32}, {"e4m3", 8},  {"e5m2", 8}};

struct ShapeRow {
  uint32_t m, n, k, bits;  // bits: of an element of a
  bool wmma;
};
constexpr ShapeRow kMatrixShapes[] = {
    {16, 8, 8, 16, false},  {16, 8, 16, 16, false}, {16, 8, 4, 32, false}, {16, 8, 8, 32, false},
    {8, 8, 4, 64, false},   {16, 8, 4, 64, false},  {16, 8, 8, 64, false}, {16, 8, 16, 64, false},
    {8, 8, 16, 8, false},   {16, 8, 16, 8, false},  {16, 8, 32, 8, false}, {8, 8, 32, 4, false},
    {16, 8, 32, 4, false},  {16, 8, 64, 4, false},  {8, 8, 128, 1, false}, {16, 8, 128, 1, false},
    {16, 8, 256, 1, false}, {16, 16, 16, 16, true}, {32, 8, 16, 16, true}, {8, 32, 16, 16, true},
    {16, 16, 8, 32, true},  {8, 8, 4, 64, true},    {16, 16, 16, 8, true}, {32, 8, 16, 8, true},
    {8, 32, 16, 8, true},   {8, 8, 32, 4, true},    {8, 8, 128, 1, true}};

bool is_fp8(MatrixElement e) {
  return e == MatrixElement::e4m3 || e == MatrixElement::e5m2;
}
bool is_byte(MatrixElement e) {
  return e == MatrixElement::s8 || e == MatrixElement::u8;
}
bool is_nibble(MatrixElement e) {
  return e == MatrixElement::s4 || e == MatrixElement::u4;
}

// The position of an element in the fragments: the lane and the index within the lane's elements.
struct FragmentPosition {
  uint32_t lane, index;
};

// Fragments of mma: groups of four lanes share a row (for b: a column), and each lane has words of
// consecutive elements.
FragmentPosition position_in_mma(const MatrixOperation& o, MatrixPart part, uint32_t row, uint32_t column) {
  if (part == MatrixPart::c) return {(row % 8) * 4 + column % 8 / 2, (row / 8) * 2 + column % 2};
  const uint32_t each = std::max(32 / bits_of(o.element(part)), 1u),
                 along = part == MatrixPart::a ? column : row;
  const uint32_t group = part == MatrixPart::a ? row % 8 : column,
                 halves = part == MatrixPart::a ? o.m / 8 : 1;
  const uint32_t word = along / (4 * each) * halves + (part == MatrixPart::a ? row / 8 : 0);
  return {group * 4 + along / each % 4, word * each + along % each};
}

// m8n8k4: lanes 4q to 4q + 3 and 16 + 4q to 16 + 4q + 3 compute a separate product.
FragmentPosition position_in_quad(const MatrixOperation& o, uint32_t quad, MatrixPart part, uint32_t row,
                                  uint32_t column) {
  const auto lane = [&](uint32_t of_eight) { return quad * 4 + of_eight % 4 + (of_eight < 4 ? 0 : 16); };
  if (part == MatrixPart::a) {
    if (!o.a_by_column) return {lane(row), column};
    return {lane(column + (row < 4 ? 0 : 4)), row % 4};
  }
  if (part == MatrixPart::b) {
    if (!o.b_by_row) return {lane(column), row};
    return {lane(row + (column < 4 ? 0 : 4)), column % 4};
  }
  if (o.c == MatrixElement::f16) return {lane(row), column};
  return {lane((row & 1) | (column & 2) | (row & 4)), (row & 2) | (column & 4) | (column & 1)};
}

FragmentPosition position_of(const MatrixOperation& o, uint32_t quad, MatrixPart part, uint32_t row,
                             uint32_t column) {
  if (o.layout == MatrixLayout::mma) return position_in_mma(o, part, row, column);
  if (o.layout == MatrixLayout::quads) return position_in_quad(o, quad, part, row, column);
  const uint32_t each = o.rows(part) * o.columns(part) / kWarpSize, index = row * o.columns(part) + column;
  return {index / each, index % each};
}

uint64_t element_bits(const uint32_t* words, uint32_t index, uint32_t bits) {
  if (bits == 64) return words[2 * index] | uint64_t{words[2 * index + 1]} << 32;
  const uint32_t at = index * bits;
  const uint32_t value = words[at / 32] >> at % 32;
  return bits == 32 ? value : value & ((1u << bits) - 1);
}

void set_element_bits(uint32_t* words, uint32_t index, uint32_t bits, uint64_t value) {
  if (bits == 64) {
    words[2 * index] = static_cast<uint32_t>(value);
    words[2 * index + 1] = static_cast<uint32_t>(value >> 32);
    return;
  }
  const uint32_t at = index * bits, mask = bits == 32 ? ~0u : ((1u << bits) - 1) << at % 32;
  words[at / 32] = (words[at / 32] & ~mask) | (static_cast<uint32_t>(value) << at % 32 & mask);
}

double number(uint64_t bits, MatrixElement element) {
  const auto low = static_cast<uint32_t>(bits);
  switch (element) {
    case MatrixElement::f16: return softgpu_half_to_float(low);
    case MatrixElement::bf16: return std::bit_cast<float>(low << 16);
    case MatrixElement::tf32: return std::bit_cast<float>(low & ~0x1FFFu);
    case MatrixElement::f32: return std::bit_cast<float>(low);
    case MatrixElement::f64: return std::bit_cast<double>(bits);
    case MatrixElement::s8: return static_cast<int8_t>(low);
    case MatrixElement::s4: return static_cast<int32_t>(low << 28) >> 28;
    case MatrixElement::u8:
    case MatrixElement::u4:
    case MatrixElement::b1: return low;
    case MatrixElement::s32: return static_cast<int32_t>(low);
    case MatrixElement::e4m3: return softgpu_narrow_to_float(low, NarrowFormat::e4m3);
    case MatrixElement::e5m2: return softgpu_narrow_to_float(low, NarrowFormat::e5m2);
  }
  return 0;
}

// Rounds to odd, to a float whose last bit records inexactness, so that rounding to f16 gives the double's
// result.
uint32_t double_to_half(double value) {
  const auto single = static_cast<float>(value);
  const double back = single;
  uint32_t bits = std::bit_cast<uint32_t>(single);
  if (std::fabs(back) > std::fabs(value)) --bits;
  if (back < value || back > value) bits |= 1;
  return softgpu_float_to_half(std::bit_cast<float>(bits), static_cast<uint32_t>(Rounding::nearest));
}

uint64_t rounded(double value, const MatrixOperation& o) {
  switch (o.d) {
    case MatrixElement::f64: return std::bit_cast<uint64_t>(value);
    case MatrixElement::f32: return std::bit_cast<uint32_t>(static_cast<float>(value));
    case MatrixElement::f16: return double_to_half(value);
    default: break;
  }
  // The sum of integers is exact in a double.
  constexpr double kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();
  if (o.saturates) value = std::clamp(value, kMin, kMax);
  return static_cast<uint32_t>(static_cast<int64_t>(value));
}

constexpr uint32_t kMaxA = 16 * 256, kMaxB = 256 * 8, kMaxC = 256;
struct Scratch {
  double a[kMaxA], b[kMaxB], c[kMaxC];  // b column by column
};

struct MmaLane {
  uint64_t operation;
  const uint32_t* in;
  uint32_t* out;
};

// Lanes that arrived with another instruction do not take part.
const MmaLane* lane_of(void* const* lanes, uint32_t lane, uint64_t operation) {
  const auto* one = static_cast<const MmaLane*>(lanes[lane]);
  return one && one->operation == operation ? one : nullptr;
}

void multiply(const MatrixOperation& o, Scratch& s) {
  for (uint32_t row = 0; row < o.m; ++row)
    for (uint32_t column = 0; column < o.n; ++column) {
      const double *a = s.a + row * o.k, *b = s.b + column * o.k;
      double sum = s.c[row * o.n + column];
      if (o.a == MatrixElement::f64) {
        for (uint32_t k = 0; k < o.k; ++k) sum = std::fma(a[k], b[k], sum);
      } else if (o.a == MatrixElement::b1) {
        for (uint32_t k = 0; k < o.k; ++k) sum += o.uses_and ? a[k] * b[k] : a[k] != b[k];
      } else {
        double products = 0;
        for (uint32_t k = 0; k < o.k; ++k) products += a[k] * b[k];
        sum += products;
      }
      s.c[row * o.n + column] = sum;
    }
}

void compute_mma(void* const* lanes) {
  uint64_t operation = 0;
  for (uint32_t lane = kWarpSize; lane-- > 0;)
    if (lanes[lane]) operation = static_cast<const MmaLane*>(lanes[lane])->operation;
  const MatrixOperation o = MatrixOperation::unpack(operation);
  // Allocated on the heap: static TLS is scarce in a library opened with dlopen.
  static thread_local std::unique_ptr<Scratch> kept;
  if (!kept) kept = std::make_unique<Scratch>();
  Scratch& scratch = *kept;
  const uint32_t before[] = {0, o.words(MatrixPart::a), o.words(MatrixPart::a) + o.words(MatrixPart::b)};
  const uint32_t products = o.layout == MatrixLayout::quads ? 4 : 1;
  for (uint32_t quad = 0; quad < products; ++quad) {
    const auto read = [&](MatrixPart part, uint32_t row, uint32_t column) -> double {
      const FragmentPosition position = position_of(o, quad, part, row, column);
      const MmaLane* lane = lane_of(lanes, position.lane, operation);
      if (!lane) return 0;
      const MatrixElement element = o.element(part);
      return number(
          element_bits(lane->in + before[static_cast<size_t>(part)], position.index, bits_of(element)),
          element);
    };
    for (uint32_t row = 0; row < o.m; ++row)
      for (uint32_t k = 0; k < o.k; ++k) scratch.a[row * o.k + k] = read(MatrixPart::a, row, k);
    for (uint32_t column = 0; column < o.n; ++column)
      for (uint32_t k = 0; k < o.k; ++k) scratch.b[column * o.k + k] = read(MatrixPart::b, k, column);
    for (uint32_t row = 0; row < o.m; ++row)
      for (uint32_t column = 0; column < o.n; ++column)
        scratch.c[row * o.n + column] = read(MatrixPart::c, row, column);
    multiply(o, scratch);
    MatrixOperation result = o;
    result.c = o.d;
    for (uint32_t row = 0; row < o.m; ++row)
      for (uint32_t column = 0; column < o.n; ++column) {
        const FragmentPosition position = position_of(result, quad, MatrixPart::c, row, column);
        if (const MmaLane* lane = lane_of(lanes, position.lane, operation))
          set_element_bits(lane->out, position.index, bits_of(o.d),
                           rounded(scratch.c[row * o.n + column], o));
      }
  }
}

// Ends the grid with a fault if the access is not allowed.
void check(ThreadContext* thread, uint64_t address, uint32_t bytes, uint64_t low, uint64_t high,
           bool is_store) {
  if (low == high) {
    if (!in_range(address, bytes) || address % bytes != 0)
      softgpu_check_access(thread, address, bytes, is_store);
    return;
  }
  if (address < low || address > high || high - address < bytes)
    softgpu_fault(thread, FaultKind::illegal_address, address);
  if (address % bytes != 0) softgpu_fault(thread, FaultKind::misaligned_address, address);
}

// Calls visit(index in the fragment, address, bit within the byte) for each element that the lane holds.
template <typename Visit>
void for_each_element(ThreadContext* thread, const MatrixOperation& o, MatrixPart part, bool by_column,
                      uint64_t address, uint32_t stride, Visit visit) {
  const uint32_t bits = bits_of(o.element(part)), held = o.words(part) * 32 / bits;
  const uint32_t each = o.rows(part) * o.columns(part) / kWarpSize;
  for (uint32_t index = 0; index < held; ++index) {
    const uint32_t element = thread->lane * each + index % each;
    const uint64_t row = element / o.columns(part), column = element % o.columns(part);
    const uint64_t at = (by_column ? column * stride + row : row * stride + column) * bits;
    visit(index, address + at / 8, static_cast<uint32_t>(at % 8));
  }
}

// Memory is read after all lanes have arrived and written before any continues: warps run in lock step on a
// GPU, so programs load in the next instruction what other lanes stored, without a barrier in between.
struct RowsLane {
  uint32_t count, transposes;
  uint32_t words[4], out[4];
  std::byte* row = nullptr;  // address of the row in memory
};
constexpr uint32_t kRowBytes = 16;

template <class Visit>
void for_each_row(void* const* lanes, Visit&& visit) {
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    auto* const one = static_cast<RowsLane*>(lanes[lane]);
    if (one && one->row) visit(*one);
  }
}

// Element (row, column) of a matrix is held by lane 4 * row + column / 2; lane `row` passes the address of
// its row.
void compute_rows(void* const* lanes, bool gathers) {
  const RowsLane* first = nullptr;
  for (uint32_t lane = kWarpSize; lane-- > 0;)
    if (lanes[lane]) first = static_cast<const RowsLane*>(lanes[lane]);
  const auto lane_at = [&](uint32_t lane) -> RowsLane* {
    auto* one = static_cast<RowsLane*>(lanes[lane]);
    return one && one->count == first->count && one->transposes == first->transposes ? one : nullptr;
  };
  for (uint32_t matrix = 0; matrix < first->count; ++matrix)
    for (uint32_t row = 0; row < 8; ++row)
      for (uint32_t column = 0; column < 8; ++column) {
        const uint32_t r = first->transposes ? column : row, c = first->transposes ? row : column;
        RowsLane *memory = lane_at(matrix * 8 + r), *fragment = lane_at(row * 4 + column / 2);
        if (!memory || !fragment) continue;
        // Element (r, c) in memory is element (row, column) of the fragment.
        if (gathers)
          set_element_bits(fragment->out + matrix, column % 2, 16, element_bits(memory->words, c, 16));
        else
          set_element_bits(memory->out, c, 16, element_bits(fragment->words + matrix, column % 2, 16));
      }
}
void compute_ldmatrix(void* const* lanes) {
  for_each_row(lanes, [](RowsLane& lane) { std::memcpy(lane.words, lane.row, kRowBytes); });
  compute_rows(lanes, true);
}
void compute_stmatrix(void* const* lanes) {
  compute_rows(lanes, false);
  for_each_row(lanes, [](RowsLane& lane) { std::memcpy(lane.row, lane.out, kRowBytes); });
}
void compute_nothing(void* const*) {}

void compute_movmatrix(void* const* lanes) {
  for (uint32_t row = 0; row < 8; ++row)
    for (uint32_t column = 0; column < 8; ++column) {
      auto* to = static_cast<RowsLane*>(lanes[row * 4 + column / 2]);
      const auto* from = static_cast<const RowsLane*>(lanes[column * 4 + row / 2]);
      if (to && from) set_element_bits(to->out, column % 2, 16, element_bits(from->words, row % 2, 16));
    }
}

constexpr uint32_t kWholeWarp = ~0u;

void synchronise_warp(ThreadContext* thread) {
  char here = 0;
  softgpu_warp_call(thread, compute_nothing, &here, kWholeWarp);
}

}  // namespace

std::optional<MatrixElement> find_matrix_element(std::string_view name) {
  for (size_t i = 0; i < std::size(kElements); ++i)
    if (kElements[i].name == name) return static_cast<MatrixElement>(i);
  return std::nullopt;
}

uint32_t bits_of(MatrixElement element) {
  return kElements[static_cast<size_t>(element)].bits;
}

uint64_t MatrixOperation::pack() const {
  uint64_t bits = 0;
  uint32_t at = 0;
  const auto put = [&](uint64_t value, uint32_t width) {
    bits |= value << at;
    at += width;
  };
  put(static_cast<uint64_t>(layout), 2);
  for (uint32_t size : {m, n, k}) put(size, 10);
  for (MatrixElement e : {a, b, c, d}) put(static_cast<uint64_t>(e), 4);
  for (bool flag : {a_by_column, b_by_row, saturates, uses_and}) put(flag, 1);
  return bits;
}

MatrixOperation MatrixOperation::unpack(uint64_t bits) {
  MatrixOperation o;
  const auto take = [&](uint32_t width) {
    const uint64_t value = bits & ((1u << width) - 1);
    bits >>= width;
    return value;
  };
  o.layout = static_cast<MatrixLayout>(take(2));
  for (uint32_t* size : {&o.m, &o.n, &o.k}) *size = static_cast<uint32_t>(take(10));
  for (MatrixElement* e : {&o.a, &o.b, &o.c, &o.d}) *e = static_cast<MatrixElement>(take(4));
  for (bool* flag : {&o.a_by_column, &o.b_by_row, &o.saturates, &o.uses_and}) *flag = take(1) != 0;
  return o;
}

bool MatrixOperation::is_known() const {
  using E = MatrixElement;
  const auto both = [&](E x, E y) { return (c == x || c == y) && (d == x || d == y); };
  const bool same = a == b, by_type = a == E::f16                    ? same && both(E::f16, E::f32)
                                      : a == E::bf16 || a == E::tf32 ? same && both(E::f32, E::f32)
                                      : is_fp8(a)    ? is_fp8(b) && c == d && both(E::f32, E::f16)
                                      : is_byte(a)   ? is_byte(b) && both(E::s32, E::s32)
                                      : is_nibble(a) ? is_nibble(b) && both(E::s32, E::s32)
                                      : a == E::b1   ? same && both(E::s32, E::s32)
                                      : a == E::f64  ? same && both(E::f64, E::f64)
                                                     : false;
  if (!by_type) return false;
  if (layout == MatrixLayout::quads) return m == 8 && n == 8 && k == 4 && a == E::f16;
  const bool wmma = layout == MatrixLayout::wmma;
  if (wmma && is_fp8(a)) return false;
  return std::any_of(std::begin(kMatrixShapes), std::end(kMatrixShapes), [&](const ShapeRow& row) {
    return row.m == m && row.n == n && row.k == k && row.bits == bits_of(a) && row.wmma == wmma;
  });
}

uint32_t MatrixOperation::words(MatrixPart part) const {
  const uint32_t bits = bits_of(element(part)) * rows(part) * columns(part);
  if (layout == MatrixLayout::quads) return bits / 8 / 32;
  // Fragments of f16 have eight words in every shape; elements are repeated.
  if (layout == MatrixLayout::wmma && part != MatrixPart::c && a == MatrixElement::f16) return 8;
  return bits / kWarpSize / 32;
}

uint32_t MatrixOperation::result_words() const {
  MatrixOperation result = *this;
  result.c = d;
  return result.words(MatrixPart::c);
}

void softgpu_mma(ThreadContext* thread, uint64_t operation, const uint32_t* in, uint32_t* out) {
  MmaLane lane{operation, in, out};
  std::fill_n(out, MatrixOperation::unpack(operation).result_words(), 0u);
  softgpu_warp_call(thread, compute_mma, &lane, kWholeWarp);
}

void softgpu_wmma_load(ThreadContext* thread, uint64_t operation, MatrixPart part, uint32_t by_column,
                       uint64_t address, uint64_t low, uint64_t high, uint32_t stride, uint32_t* out) {
  const MatrixOperation o = MatrixOperation::unpack(operation);
  const uint32_t bits = bits_of(o.element(part)), bytes = std::max(bits / 8, 1u);
  synchronise_warp(thread);
  for_each_element(thread, o, part, by_column, address, stride,
                   [&](uint32_t index, uint64_t at, uint32_t bit) {
                     check(thread, at, bytes, low, high, false);
                     uint64_t value = 0;
                     std::memcpy(&value, reinterpret_cast<const void*>(at), bytes);
                     set_element_bits(out, index, bits, value >> bit);
                   });
  synchronise_warp(thread);
}

void softgpu_wmma_store(ThreadContext* thread, uint64_t operation, uint32_t by_column, uint64_t address,
                        uint64_t low, uint64_t high, uint32_t stride, const uint32_t* in) {
  // The stored matrix is c, with elements of at least 16 bits.
  const MatrixOperation o = MatrixOperation::unpack(operation);
  const uint32_t bits = bits_of(o.c);
  synchronise_warp(thread);
  for_each_element(thread, o, MatrixPart::c, by_column, address, stride,
                   [&](uint32_t index, uint64_t at, uint32_t) {
                     check(thread, at, bits / 8, low, high, true);
                     const uint64_t value = element_bits(in, index, bits);
                     std::memcpy(reinterpret_cast<void*>(at), &value, bits / 8);
                   });
  synchronise_warp(thread);
}

void softgpu_ldmatrix(ThreadContext* thread, uint32_t count, uint32_t transposes, uint64_t address,
                      uint64_t low, uint64_t high, uint32_t* out) {
  RowsLane lane{count, transposes, {}, {}};
  if (thread->lane < 8 * count) {
    check(thread, address, kRowBytes, low, high, false);
    lane.row = reinterpret_cast<std::byte*>(address);
  }
  softgpu_warp_call(thread, compute_ldmatrix, &lane, kWholeWarp);
  std::copy_n(lane.out, count, out);
}

void softgpu_stmatrix(ThreadContext* thread, uint32_t count, uint32_t transposes, uint64_t address,
                      uint64_t low, uint64_t high, const uint32_t* in) {
  RowsLane lane{count, transposes, {}, {}};
  std::copy_n(in, count, lane.words);
  if (thread->lane < 8 * count) {
    check(thread, address, kRowBytes, low, high, true);
    lane.row = reinterpret_cast<std::byte*>(address);
  }
  softgpu_warp_call(thread, compute_stmatrix, &lane, kWholeWarp);
}

uint32_t softgpu_movmatrix(ThreadContext* thread, uint32_t value) {
  RowsLane lane{0, 0, {value, 0, 0, 0}, {}};
  softgpu_warp_call(thread, compute_movmatrix, &lane, kWholeWarp);
  return lane.out[0];
}

}  // namespace gpupool::softgpu
