#include "server/softgpu/jit/support.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>

#include "server/softgpu/exec/texture.h"
#include "server/softgpu/jit/decoded.h"
#include "server/softgpu/jit/matrix.h"
#include "server/softgpu/jit/narrow_float.h"
#include "server/softgpu/jit/tensor.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

// Sets the host's rounding mode for the lifetime of the object.
class RoundingScope {
 public:
  explicit RoundingScope(uint32_t rounding) : before_(std::fegetround()) {
    switch (static_cast<Rounding>(rounding)) {
      case Rounding::zero: std::fesetround(FE_TOWARDZERO); break;
      case Rounding::down: std::fesetround(FE_DOWNWARD); break;
      case Rounding::up: std::fesetround(FE_UPWARD); break;
      default: std::fesetround(FE_TONEAREST); break;
    }
  }
  ~RoundingScope() { std::fesetround(before_); }

 private:
  int before_;
};

// Operands and results are volatile; otherwise the compiler could move the computation out of the scope.
template <typename Real>
Real directed(uint32_t operation, uint32_t rounding, Real a_value, Real b_value, Real c_value) {
  volatile Real a = a_value, b = b_value, c = c_value;
  RoundingScope scope(rounding);
  volatile Real result;
  switch (operation) {
    case kAdd: result = a + b; break;
    case kSubtract: result = a - b; break;
    case kMultiply: result = a * b; break;
    case kFma: result = std::fma(a, b, c); break;
    case kDivide: result = a / b; break;
    default: result = std::sqrt(a); break;
  }
  return result;
}

template <typename Real>
Real from_integer(uint64_t value, uint32_t is_signed, uint32_t rounding) {
  volatile uint64_t held = value;
  RoundingScope scope(rounding);
  volatile Real result = is_signed ? static_cast<Real>(static_cast<int64_t>(held)) : static_cast<Real>(held);
  return result;
}

// Drops the low `cut` bits of a float's magnitude, with the given rounding.
uint32_t round_bits(uint32_t magnitude, uint32_t cut, bool negative, Rounding rounding) {
  uint32_t low = magnitude & ((1u << cut) - 1), high = magnitude >> cut, half = 1u << (cut - 1);
  bool up = false;
  if (rounding == Rounding::up)
    up = !negative && low != 0;
  else if (rounding == Rounding::down)
    up = negative && low != 0;
  else if (rounding != Rounding::zero)
    up = low > half || (low == half && (high & 1));
  return high + up;
}

}  // namespace

extern "C" {

static float softgpu_directed_f32(uint32_t operation, uint32_t rounding, float a, float b, float c) {
  return directed<float>(operation, rounding, a, b, c);
}
static double softgpu_directed_f64(uint32_t operation, uint32_t rounding, double a, double b, double c) {
  return directed<double>(operation, rounding, a, b, c);
}
static float softgpu_int_to_f32(uint64_t value, uint32_t is_signed, uint32_t rounding) {
  return from_integer<float>(value, is_signed, rounding);
}
static double softgpu_int_to_f64(uint64_t value, uint32_t is_signed, uint32_t rounding) {
  return from_integer<double>(value, is_signed, rounding);
}
static float softgpu_f64_to_f32(double value, uint32_t rounding) {
  volatile double held = value;
  RoundingScope scope(rounding);
  volatile float result = static_cast<float>(held);
  return result;
}

float softgpu_half_to_float(uint32_t half) {
  uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13);
  if (exponent) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

uint32_t softgpu_float_to_half(float value, uint32_t rounding_code) {
  auto rounding = static_cast<Rounding>(rounding_code);
  uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  bool negative = sign != 0;
  if (magnitude > 0x7F800000) return 0x7FFF;
  if (magnitude == 0x7F800000) return sign | 0x7C00;
  if (magnitude >=
      0x47800000) {  // 2^16 and above: infinity, or the largest number when rounding towards zero
    bool away = rounding == Rounding::nearest || (rounding == Rounding::up && !negative) ||
                (rounding == Rounding::down && negative);
    return sign | (away ? 0x7C00 : 0x7BFF);
  }
  if (magnitude >= 0x38800000) return sign | (round_bits(magnitude - 0x38000000, 13, negative, rounding));
  // Subnormal result: the fraction is in units of 2^-24.
  uint32_t exponent = magnitude >> 23;
  uint32_t fraction = exponent ? (magnitude & 0x7FFFFF) | 0x800000 : magnitude & 0x7FFFFF;
  uint32_t cut = 126 - (exponent ? exponent : 1);
  if (cut > 25) {  // less than a quarter of the smallest number: only its being nonzero matters
    fraction = fraction != 0;
    cut = 2;
  }
  return sign | round_bits(fraction, cut, negative, rounding);
}

uint32_t softgpu_float_to_bf16(float value, uint32_t rounding) {
  uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return 0x7FFF;
  if (magnitude == 0x7F800000) return bits >> 16;
  return (bits >> 16 & 0x8000) | round_bits(magnitude, 16, bits >> 31, static_cast<Rounding>(rounding));
}

// a * b + c of bf16 numbers, rounded to odd, so that rounding the float to bf16 gives the exact result's
// rounding.
static float softgpu_fma_bf16(float a, float b, float c) {
  float up = directed<float>(kFma, static_cast<uint32_t>(Rounding::up), a, b, c);
  float down = directed<float>(kFma, static_cast<uint32_t>(Rounding::down), a, b, c);
  if (!(up != down)) return std::fma(a, b, c);  // exact, or NaN
  float truncated = up > 0 ? down : up;
  if (std::isinf(truncated)) return truncated;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(truncated) | 1);
}

static float softgpu_sin_f32(float x) {
  return std::sin(x);
}
static float softgpu_cos_f32(float x) {
  return std::cos(x);
}
static float softgpu_log2_f32(float x) {
  return std::log2(x);
}
static float softgpu_exp2_f32(float x) {
  return std::exp2(x);
}
static float softgpu_tanh_f32(float x) {
  return std::tanh(x);
}

// Returns the position of the n-th set bit counted from bit `base`: upwards for n > 0, downwards for n < 0,
// the bit at `base` itself for n = 0; ~0 if there is none.
static uint32_t softgpu_fns(uint32_t mask, uint32_t base, int32_t offset) {
  if (base > 31) return ~0u;
  if (offset == 0) return mask >> base & 1 ? base : ~0u;
  int64_t left = offset > 0 ? offset : -int64_t{offset};
  for (int bit = static_cast<int>(base); bit >= 0 && bit<32; bit += offset> 0 ? 1 : -1)
    if ((mask >> bit & 1) && --left == 0) return static_cast<uint32_t>(bit);
  return ~0u;
}

// Without kReduxNan a NaN operand gives the other operand.
static uint32_t redux_floats(uint32_t operation, uint32_t left, uint32_t right) {
  const float a = std::bit_cast<float>(left), b = std::bit_cast<float>(right);
  if (std::isnan(a) || std::isnan(b)) {
    if ((operation & kReduxNan) || (std::isnan(a) && std::isnan(b))) return 0x7FFFFFFF;
    return std::isnan(a) ? right : left;
  }
  if (a == b) return operation & kReduxMaximum ? left & right : left | right;  // -0 is less than +0
  return (operation & kReduxMaximum ? a > b : a < b) ? left : right;
}

static uint32_t softgpu_redux(ThreadContext* thread, uint32_t operation, uint32_t value,
                              uint32_t member_mask) {
  uint32_t result = 0;
  bool first = true;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    if (!(member_mask >> lane & 1)) continue;
    uint32_t in_range;
    uint32_t other = softgpu_shuffle(thread, ShuffleMode::index, value, lane, 31, member_mask, &in_range);
    if (operation & kReduxFloat) {
      if (operation & kReduxMagnitude) other &= 0x7FFFFFFF;
      result = first ? redux_floats(operation, other, other) : redux_floats(operation, result, other);
      first = false;
      continue;
    }
    auto a = static_cast<int32_t>(result), b = static_cast<int32_t>(other);
    if (first)
      result = other;
    else if (operation == 0)
      result += other;
    else if (operation == 1)
      result = static_cast<uint32_t>(a < b ? a : b);
    else if (operation == 2)
      result = result < other ? result : other;
    else if (operation == 3)
      result = static_cast<uint32_t>(a > b ? a : b);
    else if (operation == 4)
      result = result > other ? result : other;
    else if (operation == 5)
      result &= other;
    else if (operation == 6)
      result |= other;
    else
      result ^= other;
    first = false;
  }
  return result;
}

// An mbarrier: pending arrivals in bits 0 to 19, expected arrivals in 20 to 39, pending bytes in 40 to 62,
// phase in 63. All threads that use it run on one host thread.
constexpr uint64_t kArrivals = (1u << 20) - 1, kBytes = (1u << 23) - 1;

static uint64_t finish_phase(uint64_t state) {
  if ((state & kArrivals) != 0 || (state >> 40 & kBytes) != 0) return state;
  return (state ^ 1ull << 63) | (state >> 20 & kArrivals);
}

static uint64_t softgpu_mbarrier_new(uint32_t count) {
  return (count & kArrivals) << 20 | (count & kArrivals);
}
static uint32_t softgpu_mbarrier_pending(uint64_t state) {
  return state & kArrivals;
}

static uint64_t softgpu_mbarrier_arrive(uint64_t* barrier, uint32_t count, uint32_t drops) {
  uint64_t before = *barrier, pending = before & kArrivals, expected = before >> 20 & kArrivals;
  pending -= std::min<uint64_t>(count, pending);
  if (drops) expected -= std::min<uint64_t>(count, expected);
  *barrier = finish_phase((before & ~(kArrivals << 20 | kArrivals)) | expected << 20 | pending);
  return before;
}

uint64_t softgpu_mbarrier_transfer(uint64_t* barrier, uint64_t bytes) {
  uint64_t before = *barrier, under_way = ((before >> 40 & kBytes) + bytes) & kBytes;
  uint64_t after = (before & ~(kBytes << 40)) | under_way << 40;
  // Adding bytes cannot complete a phase.
  *barrier = static_cast<int64_t>(bytes) < 0 ? finish_phase(after) : after;
  return before;
}

// Both addresses are generic; ranges in shared memory have been checked to lie in their window.
static void softgpu_bulk_copy(ThreadContext* thread, uint64_t to, uint64_t from, uint64_t bytes) {
  constexpr uint64_t kAlignment = 16;
  for (uint64_t value : {to, from, bytes})
    if (value % kAlignment != 0) softgpu_fault(thread, FaultKind::misaligned_address, value);
  for (uint64_t address : {to, from})
    if (!in_range(address, bytes))
      softgpu_check_access(thread, address, static_cast<uint32_t>(bytes), address == to);
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
}

// Copies to the same offset in the window of every block of the mask and signals the mbarrier at the same
// offset there.
static void softgpu_bulk_multicast(ThreadContext* thread, uint64_t to, uint64_t from, uint64_t bytes,
                                   uint64_t barrier, uint16_t ranks) {
  constexpr uint64_t kOffset = (1u << kClusterAddressBits) - 1;
  for (uint64_t rank = 0; rank < kMaxClusterBlocks; ++rank) {
    if (!(ranks >> rank & 1)) continue;
    const uint64_t window = (rank + 1) << kClusterAddressBits;
    const auto size = static_cast<uint32_t>(bytes);
    softgpu_bulk_copy(thread, softgpu_cluster_to_generic(thread, window | (to & kOffset), size), from, bytes);
    const uint64_t word = softgpu_cluster_to_generic(thread, window | (barrier & kOffset), sizeof(uint64_t));
    if (word % sizeof(uint64_t) != 0) softgpu_fault(thread, FaultKind::misaligned_address, word);
    softgpu_mbarrier_transfer(reinterpret_cast<uint64_t*>(word), -bytes);
  }
}

// clusterlaunchcontrol.try_cancel: every block is started, so the response (zeros) is always that none was
// cancelled. The addresses are in shared::cluster space; to_all: the same offsets in each block of the
// cluster.
static void softgpu_cancel_nothing(ThreadContext* thread, uint64_t answer, uint64_t barrier,
                                   uint32_t to_all) {
  constexpr uint64_t kOffset = (1u << kClusterAddressBits) - 1, kAnswerBytes = 16;
  const BlockContext& block = *thread->block;
  const uint64_t blocks = uint64_t{block.cluster_dim[0]} * block.cluster_dim[1] * block.cluster_dim[2];
  for (uint64_t rank = 0; rank < (to_all ? blocks : 1); ++rank) {
    const uint64_t window = to_all ? (rank + 1) << kClusterAddressBits : 0;
    const uint64_t to = softgpu_cluster_to_generic(thread, window | (answer & kOffset), kAnswerBytes);
    const uint64_t word = softgpu_cluster_to_generic(thread, window | (barrier & kOffset), sizeof(uint64_t));
    if (to % kAnswerBytes != 0) softgpu_fault(thread, FaultKind::misaligned_address, to);
    if (word % sizeof(uint64_t) != 0) softgpu_fault(thread, FaultKind::misaligned_address, word);
    std::memset(reinterpret_cast<void*>(to), 0, kAnswerBytes);
    softgpu_mbarrier_transfer(reinterpret_cast<uint64_t*>(word), -kAnswerBytes);
  }
}

}  // extern "C"

bool host_converts_half() {
#if defined(__x86_64__)
  static const bool yes = [] {  // clang's __builtin_cpu_supports lacks "f16c"; F16C also requires AVX
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __builtin_cpu_supports("avx") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
           (ecx & bit_F16C) != 0;
  }();
  return yes;
#elif defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

std::span<const RuntimeSymbol> runtime_symbols() {
#define SYMBOL(name) \
  { #name, reinterpret_cast<void*>(&name) }
#define MATHS(name, type) \
  { #name, reinterpret_cast<void*>(static_cast<type>(&std::name)) }
  using F1 = float (*)(float);
  using D1 = double (*)(double);
  static const RuntimeSymbol kSymbols[] = {
      SYMBOL(softgpu_barrier),
      SYMBOL(softgpu_barrier_arrive),
      SYMBOL(softgpu_warp_sync),
      SYMBOL(softgpu_shuffle),
      SYMBOL(softgpu_vote),
      SYMBOL(softgpu_match_any),
      SYMBOL(softgpu_match_all),
      SYMBOL(softgpu_active_mask),
      SYMBOL(softgpu_converge),
      SYMBOL(softgpu_yield),
      SYMBOL(softgpu_exit),
      SYMBOL(softgpu_check_access),
      SYMBOL(softgpu_fault),
      SYMBOL(softgpu_clock64),
      SYMBOL(softgpu_global_timer),
      SYMBOL(softgpu_texture_fetch),
      SYMBOL(softgpu_texture_query),
      SYMBOL(softgpu_surface_load),
      SYMBOL(softgpu_surface_store),
      SYMBOL(softgpu_surface_reduce),
      SYMBOL(softgpu_is_texture),
      SYMBOL(softgpu_directed_f32),
      SYMBOL(softgpu_directed_f64),
      SYMBOL(softgpu_int_to_f32),
      SYMBOL(softgpu_int_to_f64),
      SYMBOL(softgpu_f64_to_f32),
      SYMBOL(softgpu_half_to_float),
      SYMBOL(softgpu_float_to_half),
      SYMBOL(softgpu_float_to_bf16),
      SYMBOL(softgpu_fma_bf16),
      SYMBOL(softgpu_sin_f32),
      SYMBOL(softgpu_cos_f32),
      SYMBOL(softgpu_log2_f32),
      SYMBOL(softgpu_exp2_f32),
      SYMBOL(softgpu_tanh_f32),
      SYMBOL(softgpu_fns),
      SYMBOL(softgpu_redux),
      SYMBOL(softgpu_mbarrier_new),
      SYMBOL(softgpu_mbarrier_pending),
      SYMBOL(softgpu_mbarrier_arrive),
      SYMBOL(softgpu_mbarrier_transfer),
      SYMBOL(softgpu_bulk_copy),
      SYMBOL(softgpu_bulk_multicast),
      SYMBOL(softgpu_cancel_nothing),
      SYMBOL(softgpu_bulk_reduce),
      SYMBOL(softgpu_bulk_copy_masked),
      SYMBOL(softgpu_tensor_load),
      SYMBOL(softgpu_tensor_store),
      SYMBOL(softgpu_tensormap_replace),
      SYMBOL(softgpu_cluster_arrive),
      SYMBOL(softgpu_cluster_wait),
      SYMBOL(softgpu_cluster_to_generic),
      SYMBOL(softgpu_generic_to_cluster),
      SYMBOL(softgpu_cluster_rank),
      SYMBOL(softgpu_map_to_rank),
      SYMBOL(softgpu_float_to_narrow),
      SYMBOL(softgpu_float_to_narrow_stochastic),
      SYMBOL(softgpu_narrow_to_float),
      SYMBOL(softgpu_float_to_tf32),
      SYMBOL(softgpu_mma),
      SYMBOL(softgpu_wmma_load),
      SYMBOL(softgpu_wmma_store),
      SYMBOL(softgpu_ldmatrix),
      SYMBOL(softgpu_stmatrix),
      SYMBOL(softgpu_movmatrix),
      // LLVM generates calls of these itself: of the memory functions always, of the others on old
      // processors.
      SYMBOL(memcpy),
      SYMBOL(memmove),
      SYMBOL(memset),
      SYMBOL(memcmp),
      {"fmaf", reinterpret_cast<void*>(static_cast<float (*)(float, float, float)>(&std::fma))},
      {"fma", reinterpret_cast<void*>(static_cast<double (*)(double, double, double)>(&std::fma))},
      {"floorf", reinterpret_cast<void*>(static_cast<F1>(&std::floor))},
      MATHS(floor, D1),
      {"ceilf", reinterpret_cast<void*>(static_cast<F1>(&std::ceil))},
      MATHS(ceil, D1),
      {"truncf", reinterpret_cast<void*>(static_cast<F1>(&std::trunc))},
      MATHS(trunc, D1),
      // Round half to even, which is the host's default rounding mode.
      {"roundevenf", reinterpret_cast<void*>(static_cast<F1>(&std::nearbyint))},
      {"roundeven", reinterpret_cast<void*>(static_cast<D1>(&std::nearbyint))},
  };
#undef SYMBOL
#undef MATHS
  return kSymbols;
}

}  // namespace gpupool::softgpu
