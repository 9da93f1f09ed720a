// Tests floating-point instructions against C++, including boundary values.
#include <cfenv>
#include <cmath>
#include <limits>

#include "tests/server/softgpu/jit/instruction.h"
#include "tests/support/catch.h"

using namespace gpupool::softgpu;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfD = std::numeric_limits<double>::infinity();
constexpr double kNanD = std::numeric_limits<double>::quiet_NaN();
const std::vector<float> kF32 = {0.0f,           -0.0f,         1.0f,           -1.0f,         0.5f,
                                 1.5f,           2.5f,          -2.5f,          3.14159f,      1e-40f,
                                 -1e-40f,        1e-38f,        1e38f,          -3e38f,        16777217.0f,
                                 0x1.fffffep-1f, 2147483648.0f, -2147483648.0f, 4294967296.0f, 9.3e18f,
                                 65504.0f,       65520.0f,      kInf,           -kInf,         kNan};
const std::vector<double> kF64 = {0.0,
                                  -0.0,
                                  1.0,
                                  -1.0,
                                  0.5,
                                  2.5,
                                  -3.5,
                                  1e-310,
                                  3.1415926535897931,
                                  1e300,
                                  -1e300,
                                  2147483647.5,
                                  4294967295.9,
                                  -2147483648.9,
                                  9223372036854775808.0,
                                  18446744073709551616.0,
                                  1e-50,
                                  kInfD,
                                  -kInfD,
                                  kNanD};

template <typename D, typename A, typename B, typename Reference>
void check(const std::string& code, const std::vector<A>& as, const std::vector<B>& bs, Reference reference) {
  auto [a, b] = pairs(as, bs);
  auto result = run_instruction<D>(code, a, b);
  for (size_t i = 0; i < a.size(); ++i) {
    D expected = static_cast<D>(reference(a[i], b[i]));
    INFO(code << " a=" << a[i] << " b=" << b[i] << " got " << result[i] << " expected " << expected);
    CHECK(same(result[i], expected));
  }
}
template <typename D, typename A, typename Reference>
void check(const std::string& code, const std::vector<A>& as, Reference reference) {
  check<D>(code, as, std::vector<uint32_t>{0}, [&](A a, uint32_t) { return reference(a); });
}

// Computes in another rounding mode; the volatile pointer keeps the compiler from evaluating it earlier.
template <typename Compute, typename... Arguments>
auto rounded(int mode, Compute compute, Arguments... arguments) {
  using Result = decltype(compute(arguments...));
  Result (*volatile function)(Arguments...) = compute;
  std::fesetround(mode);
  Result result = function(arguments...);
  std::fesetround(FE_TONEAREST);
  return result;
}

float flush(float x) {
  return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}

struct Mode {
  const char* name;
  int mode;
};
constexpr Mode kModes[] = {
    {"rn", FE_TONEAREST}, {"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}};

}  // namespace

TEST_CASE("arithmetic in every rounding mode") {
  for (auto [name, mode] : kModes) {
    std::string r = name;
    check<float>("add." + r + ".f32 %d, %a, %b;", kF32, kF32, [&](float a, float b) {
      return rounded(
          mode, [](float a, float b) -> float { return a + b; }, a, b);
    });
    check<float>("sub." + r + ".f32 %d, %a, %b;", kF32, kF32, [&](float a, float b) {
      return rounded(
          mode, [](float a, float b) -> float { return a - b; }, a, b);
    });
    check<float>("mul." + r + ".f32 %d, %a, %b;", kF32, kF32, [&](float a, float b) {
      return rounded(
          mode, [](float a, float b) -> float { return a * b; }, a, b);
    });
    check<float>("div." + r + ".f32 %d, %a, %b;", kF32, kF32, [&](float a, float b) {
      return rounded(
          mode, [](float a, float b) -> float { return a / b; }, a, b);
    });
    check<float>("fma." + r + ".f32 %d, %a, %b, %a;", kF32, kF32, [&](float a, float b) {
      return rounded(
          mode, [](float a, float b) -> float { return std::fma(a, b, a); }, a, b);
    });
    check<double>("add." + r + ".f64 %d, %a, %b;", kF64, kF64, [&](double a, double b) {
      return rounded(
          mode, [](double a, double b) -> double { return a + b; }, a, b);
    });
    check<double>("fma." + r + ".f64 %d, %a, %b, %b;", kF64, kF64, [&](double a, double b) {
      return rounded(
          mode, [](double a, double b) -> double { return std::fma(a, b, b); }, a, b);
    });
    check<double>("div." + r + ".f64 %d, %a, %b;", kF64, kF64, [&](double a, double b) {
      return rounded(
          mode, [](double a, double b) -> double { return a / b; }, a, b);
    });
    check<float>("sqrt." + r + ".f32 %d, %a;", kF32, [&](float a) {
      return rounded(
          mode, [](float a) -> float { return std::sqrt(a); }, a);
    });
    check<float>("rcp." + r + ".f32 %d, %a;", kF32, [&](float a) {
      return rounded(
          mode, [](float a) -> float { return 1 / a; }, a);
    });
    check<float>("cvt." + r + ".f32.f64 %d, %a;", kF64, [&](double a) {
      return rounded(
          mode, [](double a) -> float { return static_cast<float>(a); }, a);
    });
    check<float>("cvt." + r + ".f32.s32 %d, %a;",
                 std::vector<int32_t>{0, 1, -1, 16777217, -16777217, INT32_MAX, INT32_MIN}, [&](int32_t a) {
                   return rounded(
                       mode, [](int32_t a) -> float { return static_cast<float>(a); }, a);
                 });
    check<double>("cvt." + r + ".f64.u64 %d, %a;",
                  std::vector<uint64_t>{0, 1, (1ull << 53) + 1, UINT64_MAX, 1ull << 63}, [&](uint64_t a) {
                    return rounded(
                        mode, [](uint64_t a) -> double { return static_cast<double>(a); }, a);
                  });
  }
}

TEST_CASE("flushing and saturation") {
  check<float>("add.ftz.f32 %d, %a, %b;", kF32, kF32,
               [](float a, float b) { return flush(flush(a) + flush(b)); });
  check<float>("mul.ftz.f32 %d, %a, %b;", kF32, kF32,
               [](float a, float b) { return flush(flush(a) * flush(b)); });
  check<float>("add.ftz.f32 %d, %a, 0f00000000; fma.rn.ftz.f32 %d, %d, %b, %d;", kF32, kF32,
               [](float a, float b) {
                 return flush(std::fma(flush(flush(a) + 0.0f), flush(b), flush(flush(a) + 0.0f)));
               });
  check<uint32_t>("setp.eq.ftz.f32 %p, %a, 0f00000000; selp.u32 %d, 1, 0, %p;", kF32,
                  [](float a) { return flush(a) == 0; });
  auto saturate = [](float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; };
  check<float>("add.sat.f32 %d, %a, %b;", kF32, kF32, [&](float a, float b) { return saturate(a + b); });
  check<float>("cvt.sat.f32.f32 %d, %a;", kF32, saturate);
}

TEST_CASE("minimum, maximum, sign and classes") {
  auto smaller = [](auto a, auto b) {
    return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? a : b) : std::min(a, b);
  };
  auto larger = [](auto a, auto b) {
    return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? b : a) : std::max(a, b);
  };
  check<float>("min.f32 %d, %a, %b;", kF32, kF32, smaller);
  check<float>("max.f32 %d, %a, %b;", kF32, kF32, larger);
  check<double>("max.f64 %d, %a, %b;", kF64, kF64, larger);
  check<float>("min.NaN.f32 %d, %a, %b;", kF32, kF32,
               [&](float a, float b) { return std::isnan(a) || std::isnan(b) ? kNan : smaller(a, b); });
  check<float>("abs.f32 %d, %a;", kF32, [](float a) { return std::fabs(a); });
  check<float>("neg.f32 %d, %a;", kF32, [](float a) { return -a; });
  check<float>("copysign.f32 %d, %a, %b;", kF32, kF32, [](float a, float b) { return std::copysign(b, a); });
  auto test = [](const char* name, auto reference) {
    check<uint32_t>(std::string("testp.") + name + ".f32 %p, %a; selp.u32 %d, 1, 0, %p;", kF32, reference);
    check<uint32_t>(std::string("testp.") + name + ".f64 %p, %a; selp.u32 %d, 1, 0, %p;", kF64, reference);
  };
  test("finite", [](auto a) { return std::isfinite(a); });
  test("infinite", [](auto a) { return std::isinf(a); });
  test("number", [](auto a) { return !std::isnan(a); });
  test("notanumber", [](auto a) { return std::isnan(a); });
  test("normal", [](auto a) { return std::isnormal(a); });
  test("subnormal", [](auto a) { return std::fpclassify(a) == FP_SUBNORMAL; });
}

TEST_CASE("comparisons order and NaN") {
  struct Row {
    const char* op;
    bool (*reference)(float, float);
  };
  const Row rows[] = {
      {"eq", [](float a, float b) { return a == b; }},
      {"ne", [](float a, float b) { return a < b || a > b; }},
      {"lt", [](float a, float b) { return a < b; }},
      {"ge", [](float a, float b) { return a >= b; }},
      {"equ", [](float a, float b) { return !(a < b || a > b); }},
      {"neu", [](float a, float b) { return a != b; }},
      {"ltu", [](float a, float b) { return !(a >= b); }},
      {"leu", [](float a, float b) { return !(a > b); }},
      {"gtu", [](float a, float b) { return !(a <= b); }},
      {"geu", [](float a, float b) { return !(a < b); }},
      {"num", [](float a, float b) { return a == a && b == b; }},
      {"nan", [](float a, float b) { return a != a || b != b; }},
  };
  for (const Row& row : rows) {
    std::string op = row.op;
    check<uint32_t>("setp." + op + ".f32 %p, %a, %b; selp.u32 %d, 1, 0, %p;", kF32, kF32,
                    [&](float a, float b) { return row.reference(a, b); });
    check<float>("set." + op + ".f32.f32 %d, %a, %b;", kF32, kF32,
                 [&](float a, float b) { return row.reference(a, b) ? 1.0f : 0.0f; });
  }
  check<float>("slct.f32.f32 %d, %b, 0f40000000, %a;", kF32, kF32,
               [](float a, float b) { return a >= 0 ? b : 2.0f; });
}

TEST_CASE("conversion to integers clamps as a GPU does") {
  auto clamp = [](double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
  };
  auto to_s32 = [&](int mode) {
    return [&, mode](float a) -> int32_t {
      if (std::isnan(a)) return 0;
      double r = rounded(
          mode, [](double a) -> double { return std::nearbyint(a); }, static_cast<double>(a));
      return static_cast<int32_t>(clamp(r, INT32_MIN, INT32_MAX));
    };
  };
  for (auto [name, mode] : kModes) {
    check<int32_t>(std::string("cvt.") + name + "i.s32.f32 %d, %a;", kF32, to_s32(mode));
    check<float>(std::string("cvt.") + name + "i.f32.f32 %d, %a;", kF32, [mode = mode](float a) {
      return rounded(
          mode, [](float a) -> float { return std::nearbyint(a); }, a);
    });
  }
  check<uint32_t>("cvt.rzi.u32.f32 %d, %a;", kF32, [&](float a) {
    return std::isnan(a) ? 0 : static_cast<uint32_t>(clamp(std::trunc(a), 0, UINT32_MAX));
  });
  check<uint32_t>("cvt.rzi.u8.f32 %t0, %a; mov.b32 %d, %t0;", kF32, [&](float a) {
    return std::isnan(a) ? 0 : static_cast<uint32_t>(clamp(std::trunc(a), 0, 255));
  });
  check<int64_t>("cvt.rzi.s64.f32 %d, %a;", kF32, [](float a) {
    if (std::isnan(a)) return INT64_MIN;
    return a >= 0x1p63f ? INT64_MAX : a < -0x1p63f ? INT64_MIN : static_cast<int64_t>(a);
  });
  check<uint64_t>("cvt.rzi.u64.f64 %d, %a;", kF64, [](double a) {
    if (std::isnan(a)) return uint64_t{1} << 63;
    return a >= 0x1p64 ? UINT64_MAX : a <= 0 ? uint64_t{0} : static_cast<uint64_t>(a);
  });
  check<int32_t>("cvt.rzi.s32.f64 %d, %a;", kF64, [&](double a) {
    return std::isnan(a) ? INT32_MIN : static_cast<int32_t>(clamp(std::trunc(a), INT32_MIN, INT32_MAX));
  });
}

TEST_CASE("approximate functions are close") {
  std::vector<float> inputs;
  for (float x = 0.01f; x < 6; x += 0.137f) inputs.push_back(x);
  struct Row {
    const char* op;
    double (*reference)(double);
  };
  const Row rows[] = {{"sin.approx.f32", std::sin},
                      {"cos.approx.f32", std::cos},
                      {"lg2.approx.f32", std::log2},
                      {"ex2.approx.f32", std::exp2},
                      {"tanh.approx.f32", std::tanh},
                      {"sqrt.approx.f32", std::sqrt},
                      {"rsqrt.approx.f32", [](double x) { return 1 / std::sqrt(x); }},
                      {"rcp.approx.ftz.f32", [](double x) { return 1 / x; }}};
  for (const Row& row : rows) {
    auto result = run_instruction<float, float>(std::string(row.op) + " %d, %a;", inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      INFO(row.op << " " << inputs[i]);
      CHECK(std::fabs(result[i] - row.reference(inputs[i])) <=
            1e-6 * std::max(1.0, std::fabs(row.reference(inputs[i]))));
    }
  }
}

// A slow, exact reference: the nearest of all 65,536 half values, ties to even.
namespace {

double value_of_half(uint32_t h) {
  int exponent = static_cast<int>(h >> 10 & 31);
  double fraction = h & 0x3FF;
  double magnitude = exponent == 31 ? (fraction ? kNanD : kInfD)
                     : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                    : std::ldexp(fraction, -24);
  return h & 0x8000 ? -magnitude : magnitude;
}
uint16_t half_of(double value, int mode = FE_TONEAREST) {
  if (std::isnan(value)) return 0x7FFF;
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  double magnitude = std::fabs(value);
  uint32_t low = 0, high = 0x7C00;  // the largest half not above the magnitude
  while (low < high) {
    uint32_t middle = (low + high + 1) / 2;
    if (value_of_half(middle) <= magnitude)
      low = middle;
    else
      high = middle - 1;
  }
  double below = value_of_half(low);
  if (below == magnitude) return static_cast<uint16_t>(sign | low);
  bool up;
  if (mode == FE_TOWARDZERO)
    up = false;
  else if (mode == FE_UPWARD)
    up = !sign;
  else if (mode == FE_DOWNWARD)
    up = sign != 0;
  else {
    double above = low + 1 == 0x7C00 ? 65536.0 : value_of_half(low + 1);
    double middle = (below + above) / 2;
    up = magnitude > middle || (magnitude == middle && (low & 1));
  }
  return static_cast<uint16_t>(sign | (low + up));
}
bool is_nan_half(uint32_t h) {
  return (h & 0x7FFF) > 0x7C00;
}

void check_halves(const std::string& code, const std::vector<uint16_t>& as, const std::vector<uint16_t>& bs,
                  uint16_t (*reference)(double, double)) {
  auto [a, b] = pairs(as, bs);
  auto result = run_instruction<uint16_t>(code, a, b);
  for (size_t i = 0; i < a.size(); ++i) {
    uint16_t expected = reference(value_of_half(a[i]), value_of_half(b[i]));
    INFO(code << std::hex << " a=" << a[i] << " b=" << b[i] << " got " << result[i] << " expected "
              << expected);
    CHECK((result[i] == expected || (is_nan_half(result[i]) && is_nan_half(expected))));
  }
}

}  // namespace

TEST_CASE("f16 rounds once") {
  const std::vector<uint16_t> values = {0,      0x8000, 1,      0x3FF,  0x400,  0x3C00, 0xBC00,
                                        0x3C01, 0x3555, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00,
                                        0x1234, 0x5678, 0x9ABC, 0x4248, 0x0801};
  check_halves("add.f16 %d, %a, %b;", values, values, [](double a, double b) { return half_of(a + b); });
  check_halves("mul.f16 %d, %a, %b;", values, values, [](double a, double b) { return half_of(a * b); });
  check_halves("sub.f16 %d, %a, %b;", values, values, [](double a, double b) { return half_of(a - b); });
  check_halves("fma.rn.f16 %d, %a, %b, %a;", values, values,
               [](double a, double b) { return half_of(a * b + a); });
  check_halves("neg.f16 %d, %a;", values, {0}, [](double a, double) { return half_of(-a); });
  check_halves(
      "mov.b32 %t0, {%a, %b}; mov.b32 %t1, {%b, %a}; fma.rn.f16x2 %t0, %t0, %t1, %t1; mov.b32 {%h0, %d}, "
      "%t0;",
      values, values, [](double a, double b) { return half_of(a * b + a); });
  check_halves(
      "mov.b32 %t0, {%b, %a}; mov.b32 %t1, {%a, %b}; max.f16x2 %t0, %t0, %t1; mov.b32 {%h0, %d}, %t0;",
      {0x3C00, 0xBC00, 0x7E00, 0x4000}, {0x3C00, 0x4200, 0xC000},
      [](double a, double b) { return half_of(std::isnan(a) ? b : std::max(a, b)); });
  std::vector<float> floats = kF32;
  for (float x : {0x1p-24f, 0x1p-25f, 0x1.8p-25f, 0x1.000002p-25f, 0x1p-26f, 6.1e-5f, 1.0009766f,
                  1.00048828125f, 1.00146484375f, 65519.99f, -65504.1f})
    floats.push_back(x);
  for (auto [name, mode] : kModes) {
    auto result = run_instruction<uint16_t, float>(std::string("cvt.") + name + ".f16.f32 %d, %a;", floats);
    for (size_t i = 0; i < floats.size(); ++i) {
      uint16_t expected = half_of(floats[i], mode);
      if (mode == FE_TOWARDZERO && std::isinf(floats[i])) expected = half_of(floats[i]);
      INFO(name << " " << floats[i] << std::hex << " got " << result[i] << " expected " << expected);
      CHECK((result[i] == expected || (is_nan_half(result[i]) && is_nan_half(expected))));
    }
  }
  auto from_double = run_instruction<uint16_t, double>(
      "cvt.rn.f16.f64 %d, %a;",
      {1.00048828125 + 1e-12, 1.00048828125 - 1e-12, 1.00146484375, 65520, 1e-8, -3e-8});
  CHECK(from_double == std::vector<uint16_t>{0x3C01, 0x3C00, 0x3C02, 0x7C00, 0, 0x8001});
  std::vector<uint16_t> all(65536);
  for (uint32_t i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
  auto widened = run_instruction<float, uint16_t>("cvt.f32.f16 %d, %a;", all);
  for (uint32_t i = 0; i < 65536; ++i)
    if (!same(widened[i], static_cast<float>(value_of_half(i)))) FAIL("cvt.f32.f16 of " << i);
}

TEST_CASE("bf16 is the top half of a float, rounded once") {
  auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  auto to_bf16 = [&](float x) {
    return static_cast<uint16_t>(std::isnan(x) ? 0x7FFF : (bits(x) + 0x7FFF + (bits(x) >> 16 & 1)) >> 16);
  };
  auto from_bf16 = [](uint32_t h) { return std::bit_cast<float>(h << 16); };
  auto result = run_instruction<uint16_t, float>("cvt.rn.bf16.f32 %d, %a;", kF32);
  for (size_t i = 0; i < kF32.size(); ++i) CHECK(result[i] == to_bf16(kF32[i]));
  const std::vector<uint16_t> values = {0,      0x8000, 0x3F80, 0xBF80, 0x3F81, 0x4049,
                                        0x7F7F, 0x7F80, 0x0080, 0x0001, 0x2000, 0x5ABC};
  auto [a, b] = pairs(values, values);
  auto sum = run_instruction<uint16_t>("fma.rn.bf16 %d, %a, 0x3F80, %b;", a, b);
  auto product = run_instruction<uint16_t>("mul.bf16 %d, %a, %b;", a, b);
  for (size_t i = 0; i < a.size(); ++i) {
    INFO(std::hex << a[i] << " " << b[i]);
    CHECK(sum[i] == to_bf16(from_bf16(a[i]) + from_bf16(b[i])));
    CHECK(product[i] == to_bf16(from_bf16(a[i]) * from_bf16(b[i])));
  }
  // 1 + 2^-8 is a tie; any excess, however small, rounds up.
  auto tie = run_instruction<uint16_t, uint16_t, uint16_t>("fma.rn.bf16 %d, %a, %a, %b;", {0x3F80, 0x3F80},
                                                           {0x3B80, 0x3B81});
  CHECK(tie == std::vector<uint16_t>{0x3F80, 0x3F81});
}
