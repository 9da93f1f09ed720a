#include "server/softgpu/jit/tensor.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "server/softgpu/jit/decoded.h"
#include "server/softgpu/jit/support.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

// Values of CUtensorMapDataType, which headers before CUDA 12 lack.
enum ElementType : uint8_t {
  kU8,
  kU16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kF32,
  kF64,
  kBf16,
  kF32Ftz,
  kTf32,
  kTf32Ftz,
  kU4,
  kU4WithGaps,
  kU6WithGaps
};
constexpr uint32_t kMaxBox = 256, kMaxRowBytes = kMaxBox * 8, kChunk = 16;
constexpr uint64_t kWindowOffset = (1u << kClusterAddressBits) - 1;

uint32_t bits_of_element(uint8_t type) {
  switch (type) {
    case kU4: return 4;
    case kU8: return 8;
    case kU16:
    case kF16:
    case kBf16: return 16;
    case kU64:
    case kS64:
    case kF64: return 64;
    default: return 32;
  }
}

// Returns the bits of an element outside of the tensor: zeros or NaN; for f16 the NaN that fma.oob
// recognises.
uint64_t outside(const TensorMap& map) {
  if (map.fill == 0) return 0;
  switch (map.type) {
    case kF16: return kOutsideHalf;
    case kBf16: return 0x7FFF;
    case kF64: return 0x7FFFFFFFFFFFFFFF;
    default: return 0x7FFFFFFF;
  }
}

// Returns the offset in the window after applying the swizzle.
uint32_t swizzled(uint32_t offset, uint8_t mode) {
  switch (mode) {
    case 1: return offset ^ (offset >> 3 & 0x10);
    case 2: return offset ^ (offset >> 3 & 0x30);
    case 3: return offset ^ (offset >> 3 & 0x70);
    case 4: return offset ^ (offset >> 2 & 0x60);  // atoms of 32 bytes
    default: return offset;
  }
}
uint32_t swizzle_span(uint8_t mode) {
  return mode == 0 ? 0 : mode == 1 ? 32 : mode == 2 ? 64 : 128;
}

void check_memory(ThreadContext* thread, uint64_t address, uint64_t bytes, bool is_store) {
  if (!in_range(address, bytes))
    softgpu_check_access(thread, address, static_cast<uint32_t>(bytes), is_store);
}

template <typename T, typename Update>
void update_atomically(void* at, Update update) {
  std::atomic_ref<T> memory(*static_cast<T*>(at));
  T before = memory.load(std::memory_order_relaxed);
  while (!memory.compare_exchange_weak(before, update(before))) {
  }
}

template <typename T>
void reduce_integer(void* at, const void* from, Reduction reduction) {
  T value;
  std::memcpy(&value, from, sizeof value);
  update_atomically<T>(at, [&](T before) -> T {
    switch (reduction) {
      case Reduction::add:
        return static_cast<T>(static_cast<std::make_unsigned_t<T>>(before) +
                              static_cast<std::make_unsigned_t<T>>(value));
      case Reduction::minimum: return std::min(before, value);
      case Reduction::maximum: return std::max(before, value);
      case Reduction::increment: return before >= value ? 0 : before + 1;
      case Reduction::decrement: return before == 0 || before > value ? value : before - 1;
      case Reduction::conjunction: return before & value;
      case Reduction::disjunction: return before | value;
      case Reduction::difference: return before ^ value;
      default: return value;
    }
  });
}

template <typename Real>
Real combined(Real a, Real b, Reduction reduction) {
  if (reduction == Reduction::add) return a + b;
  return reduction == Reduction::minimum ? std::fmin(a, b) : std::fmax(a, b);
}

template <typename Real, typename Bits>
void reduce_real(void* at, const void* from, Reduction reduction) {
  Real value;
  std::memcpy(&value, from, sizeof value);
  update_atomically<Bits>(at, [&](Bits before) {
    return std::bit_cast<Bits>(combined(std::bit_cast<Real>(before), value, reduction));
  });
}

void reduce_half(void* at, const void* from, Reduction reduction, bool is_bfloat) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  const auto widen = [&](uint16_t bits) {
    return is_bfloat ? std::bit_cast<float>(uint32_t{bits} << 16) : softgpu_half_to_float(bits);
  };
  update_atomically<uint16_t>(at, [&](uint16_t before) {
    const float result = combined(widen(before), widen(value), reduction);
    const auto nearest = static_cast<uint32_t>(Rounding::nearest);
    return static_cast<uint16_t>(is_bfloat ? softgpu_float_to_bf16(result, nearest)
                                           : softgpu_float_to_half(result, nearest));
  });
}

uint32_t bytes_of(ReducedType type) {
  switch (type) {
    case ReducedType::f16:
    case ReducedType::bf16: return 2;
    case ReducedType::u64:
    case ReducedType::s64:
    case ReducedType::f64: return 8;
    default: return 4;
  }
}

void reduce(void* at, const void* from, Reduction reduction, ReducedType type) {
  switch (type) {
    case ReducedType::u32: return reduce_integer<uint32_t>(at, from, reduction);
    case ReducedType::s32: return reduce_integer<int32_t>(at, from, reduction);
    case ReducedType::u64: return reduce_integer<uint64_t>(at, from, reduction);
    case ReducedType::s64: return reduce_integer<int64_t>(at, from, reduction);
    case ReducedType::f32: return reduce_real<float, uint32_t>(at, from, reduction);
    case ReducedType::f64: return reduce_real<double, uint64_t>(at, from, reduction);
    case ReducedType::f16:
    case ReducedType::bf16: return reduce_half(at, from, reduction, type == ReducedType::bf16);
  }
}

std::optional<ReducedType> reduced_type(uint8_t type) {
  switch (type) {
    case kU32: return ReducedType::u32;
    case kS32: return ReducedType::s32;
    case kU64: return ReducedType::u64;
    case kS64: return ReducedType::s64;
    case kF16: return ReducedType::f16;
    case kBf16: return ReducedType::bf16;
    case kF32:
    case kF32Ftz: return ReducedType::f32;
    case kF64: return ReducedType::f64;
    default: return std::nullopt;
  }
}

// One copy through a map: the validated map and the shape of the box.
class Box {
 public:
  Box(ThreadContext* thread, uint64_t address, uint32_t rank, TensorRows rows) : thread_(thread) {
    if (address % 64 != 0) softgpu_fault(thread, FaultKind::misaligned_address, address);
    check_memory(thread, address, kTensorMapBytes, false);
    std::memcpy(&map_, reinterpret_cast<const void*>(address), sizeof map_);
    const bool known = map_.form == TensorForm::tiled && map_.rank == rank && rank >= 1 &&
                       rank <= kMaxTensorRank && map_.interleave == 0 && map_.type <= kU4 &&
                       map_.swizzle <= 4;
    if (!known) softgpu_fault(thread, FaultKind::illegal_instruction, address);
    four_ = rows == TensorRows::four;
    if (four_ && rank != 2) softgpu_fault(thread, FaultKind::illegal_instruction, address);
    for (uint32_t n = 0; n < rank; ++n) {
      const uint32_t stride = n == 0 ? 1 : map_.element_strides[n];
      if (stride == 0 || map_.box[n] == 0 || map_.box[n] > kMaxBox)
        softgpu_fault(thread, FaultKind::illegal_instruction, address);
      counts_[n] = (map_.box[n] + stride - 1) / stride;
      if (n > 0) row_count_ *= counts_[n];
    }
    if (four_) row_count_ = 4;
    row_bytes_ = counts_[0] * bits_of_element(map_.type) / 8;
    if (row_bytes_ % kChunk != 0) softgpu_fault(thread, FaultKind::illegal_instruction, address);
    pitch_ = std::max(row_bytes_, swizzle_span(map_.swizzle));
  }

  const TensorMap& map() const { return map_; }
  uint64_t window_bytes() const { return row_count_ * pitch_; }
  uint64_t bytes() const { return row_count_ * row_bytes_; }
  uint32_t row_bytes() const { return row_bytes_; }

  // Calls visit(offset of the row in the box, its address in global memory, begin and end of its bytes inside
  // the tensor).
  template <typename Visit>
  void for_each_row(const int32_t* coordinates, Visit visit) const {
    const uint32_t bits = bits_of_element(map_.type);
    const int64_t first = coordinates[0], size = int64_t{map_.sizes[0]} + 1;
    const int64_t low = std::clamp<int64_t>(-first, 0, counts_[0]),
                  high = std::clamp<int64_t>(size - first, 0, counts_[0]);
    for (uint64_t row = 0; row < row_count_; ++row) {
      uint64_t rest = row, address = map_.address + static_cast<uint64_t>(first * bits / 8);
      bool inside = low < high;
      for (uint32_t n = 1; n < map_.rank; ++n) {
        const int64_t at =
            four_ ? coordinates[1 + row]
                  : coordinates[n] + static_cast<int64_t>(rest % counts_[n]) * map_.element_strides[n];
        rest /= counts_[n];
        inside = inside && at >= 0 && at <= int64_t{map_.sizes[n]};
        address += static_cast<uint64_t>(at) * map_.strides[n - 1];
      }
      visit(row * pitch_, address, inside ? static_cast<uint32_t>(low * bits / 8) : 0,
            inside ? static_cast<uint32_t>(high * bits / 8) : 0);
    }
  }

  // Copy one row to and from the swizzled window. `window` is the window's address, `at` an offset in it.
  void put(uint64_t window, uint64_t at, const std::byte* row) const {
    for (uint32_t done = 0; done < row_bytes_; done += kChunk)
      std::memcpy(place(window, at + done), row + done, kChunk);
  }
  void get(uint64_t window, uint64_t at, std::byte* row) const {
    for (uint32_t done = 0; done < row_bytes_; done += kChunk)
      std::memcpy(row + done, place(window, at + done), kChunk);
  }

 private:
  std::byte* place(uint64_t window, uint64_t at) const {
    return reinterpret_cast<std::byte*>(window + swizzled(static_cast<uint32_t>(at), map_.swizzle));
  }

  ThreadContext* thread_;
  TensorMap map_;
  bool four_ = false;
  uint32_t counts_[kMaxTensorRank] = {1, 1, 1, 1, 1};
  uint64_t row_count_ = 1;
  uint32_t row_bytes_ = 0, pitch_ = 0;
};

// The range within which the swizzle may move the bytes [offset, offset + bytes).
struct Extent {
  uint64_t low, high;
};
Extent extent(uint64_t offset, uint64_t bytes, uint8_t mode) {
  const uint64_t span = std::max(swizzle_span(mode), kChunk);
  return {offset / span * span, (offset + bytes + span - 1) / span * span};
}

// Returns the address of offset 0 of the window that contains all bytes of the box at `address`.
uint64_t window_of(ThreadContext* thread, uint64_t address, const Box& box) {
  const uint64_t offset = address & kWindowOffset;
  if (offset % 128 != 0) softgpu_fault(thread, FaultKind::misaligned_address, address);
  if (box.window_bytes() > kWindowOffset) softgpu_fault(thread, FaultKind::illegal_address, address);
  const Extent all = extent(offset, box.window_bytes(), box.map().swizzle);
  const uint64_t low = softgpu_cluster_to_generic(thread, (address & ~kWindowOffset) | all.low,
                                                  static_cast<uint32_t>(all.high - all.low));
  return low - all.low;
}

void load_into(ThreadContext* thread, const Box& box, const int32_t* coordinates, uint64_t to,
               uint64_t barrier) {
  const uint64_t window = window_of(thread, to, box), offset = to & kWindowOffset;
  const TensorMap& map = box.map();
  const uint64_t fill = outside(map);
  const uint32_t element = std::max(bits_of_element(map.type) / 8, 1u);
  std::array<std::byte, kMaxRowBytes> row;
  box.for_each_row(coordinates, [&](uint64_t at, uint64_t address, uint32_t low, uint32_t high) {
    for (uint32_t n = 0; n < box.row_bytes(); n += element) std::memcpy(row.data() + n, &fill, element);
    if (low < high) {
      check_memory(thread, address + low, high - low, false);
      std::memcpy(row.data() + low, reinterpret_cast<const void*>(address + low), high - low);
    }
    if (map.type == kF32Ftz || map.type == kTf32Ftz)
      for (uint32_t n = low; n < high; n += element) {
        uint32_t bits;
        std::memcpy(&bits, row.data() + n, sizeof bits);
        if ((bits & 0x7F800000) == 0) bits &= 0x80000000;
        std::memcpy(row.data() + n, &bits, sizeof bits);
      }
    box.put(window, offset + at, row.data());
  });
  const uint64_t word = softgpu_cluster_to_generic(thread, barrier, sizeof(uint64_t));
  if (word % sizeof(uint64_t) != 0) softgpu_fault(thread, FaultKind::misaligned_address, word);
  softgpu_mbarrier_transfer(reinterpret_cast<uint64_t*>(word), -box.bytes());
}

}  // namespace

std::optional<Reduction> find_reduction(std::string_view name) {
  static constexpr std::string_view kNames[] = {"", "add", "min", "max", "inc", "dec", "and", "or", "xor"};
  for (uint32_t n = 1; n < std::size(kNames); ++n)
    if (kNames[n] == name) return static_cast<Reduction>(n);
  return std::nullopt;
}

std::optional<TensorField> find_tensor_field(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "global_address", "rank",     "box_dim",           "global_dim",   "global_stride",
      "element_stride", "elemtype", "interleave_layout", "swizzle_mode", "fill_mode"};
  for (uint32_t n = 0; n < std::size(kNames); ++n)
    if (kNames[n] == name) return static_cast<TensorField>(n);
  return std::nullopt;
}

void softgpu_tensor_load(ThreadContext* thread, uint64_t map, const int32_t* coordinates, uint32_t rank,
                         TensorRows rows, uint64_t to, uint64_t barrier, uint32_t ranks) {
  const Box box(thread, map, rank, rows);
  if (ranks == 0) return load_into(thread, box, coordinates, to, barrier);
  for (uint64_t block = 0; block < kMaxClusterBlocks; ++block) {
    if (!(ranks >> block & 1)) continue;
    const uint64_t window = (block + 1) << kClusterAddressBits;
    load_into(thread, box, coordinates, window | (to & kWindowOffset), window | (barrier & kWindowOffset));
  }
}

void softgpu_tensor_store(ThreadContext* thread, uint64_t map_address, const int32_t* coordinates,
                          uint32_t rank, TensorRows rows, uint64_t from, Reduction reduction) {
  const Box box(thread, map_address, rank, rows);
  const TensorMap& map = box.map();
  const auto type = reduced_type(map.type);
  const bool real = type && *type >= ReducedType::f16;
  if (reduction != Reduction::copy && (!type || (real && reduction > Reduction::maximum)))
    softgpu_fault(thread, FaultKind::illegal_instruction, map_address);
  const uint64_t window = window_of(thread, from, box), offset = from & kWindowOffset;
  std::array<std::byte, kMaxRowBytes> row;
  box.for_each_row(coordinates, [&](uint64_t at, uint64_t address, uint32_t low, uint32_t high) {
    if (low >= high) return;
    box.get(window, offset + at, row.data());
    check_memory(thread, address + low, high - low, true);
    auto* memory = reinterpret_cast<std::byte*>(address);
    if (reduction == Reduction::copy) {
      std::memcpy(memory + low, row.data() + low, high - low);
      return;
    }
    const uint32_t element = bytes_of(*type);
    if (address % element != 0) softgpu_fault(thread, FaultKind::misaligned_address, address);
    for (uint32_t n = low; n < high; n += element) reduce(memory + n, row.data() + n, reduction, *type);
  });
}

void softgpu_bulk_reduce(ThreadContext* thread, uint64_t to, uint64_t from, uint64_t bytes,
                         Reduction reduction, ReducedType type) {
  for (uint64_t value : {to, from, bytes})
    if (value % kChunk != 0) softgpu_fault(thread, FaultKind::misaligned_address, value);
  check_memory(thread, to, bytes, true);
  check_memory(thread, from, bytes, false);
  for (uint64_t n = 0; n < bytes; n += bytes_of(type))
    reduce(reinterpret_cast<std::byte*>(to) + n, reinterpret_cast<const std::byte*>(from) + n, reduction,
           type);
}

void softgpu_bulk_copy_masked(ThreadContext* thread, uint64_t to, uint64_t from, uint64_t bytes,
                              uint16_t mask) {
  for (uint64_t value : {to, from, bytes})
    if (value % kChunk != 0) softgpu_fault(thread, FaultKind::misaligned_address, value);
  check_memory(thread, to, bytes, true);
  check_memory(thread, from, bytes, false);
  for (uint64_t n = 0; n < bytes; ++n)
    if (mask >> n % kChunk & 1)
      reinterpret_cast<std::byte*>(to)[n] = reinterpret_cast<const std::byte*>(from)[n];
}

void softgpu_tensormap_replace(ThreadContext* thread, uint64_t address, TensorField field, uint32_t ordinal,
                               uint64_t value) {
  if (address % kTensorMapBytes != 0) softgpu_fault(thread, FaultKind::misaligned_address, address);
  check_memory(thread, address, kTensorMapBytes, true);
  // Element types in the numbering of the instruction.
  static constexpr uint8_t kTypes[] = {kU8,     kU16, kU32,  kS32,  kU64,     kS64, kF16,        kF32,
                                       kF32Ftz, kF64, kBf16, kTf32, kTf32Ftz, kU4,  kU4WithGaps, kU6WithGaps};
  TensorMap map;
  std::memcpy(&map, reinterpret_cast<const void*>(address), sizeof map);
  const uint32_t limit = field == TensorField::global_stride ? kMaxTensorRank - 1 : kMaxTensorRank;
  if (ordinal >= limit || (field == TensorField::elemtype && value >= std::size(kTypes)))
    softgpu_fault(thread, FaultKind::illegal_instruction, address);
  switch (field) {
    case TensorField::global_address: map.address = value; break;
    case TensorField::rank: map.rank = static_cast<uint8_t>(value + 1); break;
    case TensorField::box_dim: map.box[ordinal] = static_cast<uint16_t>(value); break;
    case TensorField::global_dim: map.sizes[ordinal] = static_cast<uint32_t>(value) - 1; break;
    case TensorField::global_stride: map.strides[ordinal] = value; break;
    case TensorField::element_stride: map.element_strides[ordinal] = static_cast<uint8_t>(value); break;
    case TensorField::elemtype: map.type = kTypes[value]; break;
    case TensorField::interleave_layout: map.interleave = static_cast<uint8_t>(value); break;
    case TensorField::swizzle_mode: map.swizzle = static_cast<uint8_t>(value); break;
    case TensorField::fill_mode: map.fill = static_cast<uint8_t>(value); break;
  }
  std::memcpy(reinterpret_cast<void*>(address), &map, sizeof map);
}

}  // namespace gpupool::softgpu
