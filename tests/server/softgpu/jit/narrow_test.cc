// Tests narrow formats and packed arithmetic: cvt to and from fp8, fp6, fp4, tf32; f32x2; halves; vectors of
// atomics.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/server/softgpu/jit/instruction.h"
#include "tests/support/catch.h"

using namespace gpupool::softgpu;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Returns the value of a small float by its definition.
double value_of(uint32_t bits, int exponent_bits, int fraction_bits, int bias) {
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> fraction_bits & ((1u << exponent_bits) - 1));
  const double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1 : 1;
  const double one = std::ldexp(1.0, fraction_bits);
  if (exponent == 0) return sign * std::ldexp(fraction / one, 1 - bias);
  return sign * std::ldexp(1 + fraction / one, exponent - bias);
}

struct Format {
  const char* name;
  int exponent_bits, fraction_bits, bias;
  uint32_t largest;  // bits
};
constexpr Format kFormats[] = {{"e4m3x2", 4, 3, 7, 0x7E},
                               {"e5m2x2", 5, 2, 15, 0x7B},
                               {"e2m3x2", 2, 3, 1, 0x1F},
                               {"e3m2x2", 3, 2, 3, 0x1F}};

// Returns the nearest number of the format, ties to even.
uint32_t nearest(const Format& f, float value) {
  uint32_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (uint32_t bits = 0; bits <= f.largest; ++bits) {
    const double wanted = std::min(std::fabs(double{value}), 1e10);  // limits infinity as well
    const double d = std::fabs(value_of(bits, f.exponent_bits, f.fraction_bits, f.bias) - wanted);
    if (d < distance || (d == distance && bits % 2 == 0)) {
      best = bits;
      distance = d;
    }
  }
  return best | (std::signbit(value) ? 1u << (f.exponent_bits + f.fraction_bits) : 0);
}

std::vector<float> floats() {
  std::vector<float> values = {
      0,     -0.0f, 1,     -1,    0.3f,          -0.7f,         448,   449,    464,    465,  1e9f,
      -1e9f, 57344, 61439, 61440, 61441,         1e-3f,         7.5f,  7.74f,  7.75f,  28,   29.9f,
      30.1f, 6,     2.5f,  3.5f,  0.0009765625f, 0.0029296875f, 1e-9f, 1e-40f, -5e-5f, kInf, -kInf};
  for (int i = 0; i < 300; ++i)
    values.push_back(std::ldexp(static_cast<float>(i * 37 % 101 - 50) / 17.0f, i % 21 - 10));
  return values;
}

uint32_t bits_of_float(float value) {
  return std::bit_cast<uint32_t>(value);
}

}  // namespace

TEST_CASE("converts floats to narrow formats") {
  const auto a = floats();
  std::vector<float> b(a.rbegin(), a.rend());
  for (const Format& f : kFormats) {
    const auto result =
        run_instruction<uint16_t>(std::string("cvt.rn.satfinite.") + f.name + ".f32 %d, %a, %b;", a, b);
    for (size_t i = 0; i < a.size(); ++i) {
      INFO(f.name << " of " << a[i] << " and " << b[i]);
      CHECK(result[i] == (nearest(f, a[i]) << 8 | nearest(f, b[i])));
    }
  }
  CHECK(run_instruction<uint16_t>("cvt.rn.satfinite.relu.e4m3x2.f32 %d, %a, %b;",
                                  std::vector<float>{-3, kNan},
                                  std::vector<float>{2, 1}) == std::vector<uint16_t>{0x0040, 0x7F38});
  CHECK(run_instruction<uint16_t>("cvt.rn.satfinite.e5m2x2.f32 %d, %a, %b;", std::vector<float>{kNan},
                                  std::vector<float>{-kInf}) == std::vector<uint16_t>{0x7FFB});
  CHECK(run_instruction<uint16_t>("cvt.rn.satfinite.e4m3x2.f16x2 %d, %a;",
                                  std::vector<uint32_t>{0xC5003C00}) == std::vector<uint16_t>{0xCA38});
  // Two 4-bit numbers in a byte.
  CHECK(run_instruction<uint8_t>(
            "{ .reg .b8 %n; cvt.rn.satfinite.e2m1x2.f32 %n, %a, %b; cvt.u16.u8 %d, %n; }",
            std::vector<float>{6, 0.3f, -9, 2.5f},
            std::vector<float>{1.5f, -1, 0, 5}) == std::vector<uint8_t>{0x73, 0x1A, 0xF0, 0x46});
  CHECK(run_instruction<uint16_t>("cvt.rz.satfinite.ue8m0x2.f32 %d, %a, %b;", std::vector<float>{1, 3, kInf},
                                  std::vector<float>{0.5f, kNan, 0}) ==
        std::vector<uint16_t>{0x7F7E, 0x80FF, 0xFE00});
  CHECK(run_instruction<uint16_t>("cvt.rp.satfinite.ue8m0x2.f32 %d, %a, %b;", std::vector<float>{1, 3},
                                  std::vector<float>{0.5f, 1.01f}) == std::vector<uint16_t>{0x7F7E, 0x8180});
}

TEST_CASE("converts narrow formats to halves") {
  for (const Format& f : kFormats) {
    std::vector<uint16_t> pairs;
    for (uint32_t bits = 0; bits <= f.largest; ++bits) {
      const uint32_t sign = 1u << (f.exponent_bits + f.fraction_bits);
      pairs.push_back(static_cast<uint16_t>((bits | sign) << 8 | bits));
    }
    // A half represents all of them exactly.
    const auto low = run_instruction<float>(std::string("{ .reg .b16 %u, %v; cvt.rn.f16x2.") + f.name +
                                                " %t0, %a; mov.b32 {%u, %v}, %t0; cvt.f32.f16 %d, %u; }",
                                            pairs);
    const auto high = run_instruction<float>(std::string("{ .reg .b16 %u, %v; cvt.rn.f16x2.") + f.name +
                                                 " %t0, %a; mov.b32 {%u, %v}, %t0; cvt.f32.f16 %d, %v; }",
                                             pairs);
    for (uint32_t bits = 0; bits <= f.largest; ++bits) {
      INFO(f.name << " " << bits);
      CHECK(low[bits] == value_of(bits, f.exponent_bits, f.fraction_bits, f.bias));
      CHECK(high[bits] == -low[bits]);
    }
  }
  CHECK(run_instruction<uint32_t>("cvt.rn.f16x2.e4m3x2 %d, %a;", std::vector<uint16_t>{0x7FFF}) ==
        std::vector<uint32_t>{0x7FFF7FFF});
  CHECK(run_instruction<uint32_t>("cvt.rn.f16x2.e5m2x2 %d, %a;", std::vector<uint16_t>{0x7CFC}) ==
        std::vector<uint32_t>{0x7C00FC00});
  CHECK(run_instruction<uint32_t>("cvt.rn.bf16x2.ue8m0x2 %d, %a;", std::vector<uint16_t>{0x7F80}) ==
        std::vector<uint32_t>{0x3F804000});
}

TEST_CASE("tf32 has ten fraction bits") {
  const std::vector<float> a = {1, 1 + 0x1p-11f, 1 + 0x3p-11f, -1 - 0x1.8p-11f, kInf, 3.4028235e38f};
  const auto bits = [](std::vector<float> values) {
    std::vector<uint32_t> result;
    for (float value : values) result.push_back(bits_of_float(value));
    return result;
  };
  CHECK(run_instruction<uint32_t>("cvt.rna.tf32.f32 %d, %a;", a) ==
        bits({1, 1 + 0x1p-10f, 1 + 0x2p-10f, -1 - 0x1p-10f, kInf, kInf}));
  CHECK(run_instruction<uint32_t>("cvt.rn.tf32.f32 %d, %a;", a) ==
        bits({1, 1, 1 + 0x2p-10f, -1 - 0x1p-10f, kInf, kInf}));
  CHECK(run_instruction<uint32_t>("cvt.rz.relu.tf32.f32 %d, %a;", a) ==
        bits({1, 1, 1 + 0x1p-10f, 0, kInf, 0x1.ffcp127f}));
  CHECK(run_instruction<uint32_t>("cvt.rn.satfinite.tf32.f32 %d, %a;", a)[5] == bits_of_float(0x1.ffcp127f));
  CHECK(run_instruction<uint32_t>("cvt.rna.tf32.f32 %d, %a;", std::vector<float>{kNan}) ==
        std::vector<uint32_t>{0x7FFFFFFF});
}

TEST_CASE("satfinite keeps halves finite") {
  const std::vector<float> a = {70000, -1e9f, 1}, b = {kInf, kNan, 65519};
  CHECK(run_instruction<uint32_t>("cvt.rn.satfinite.f16x2.f32 %d, %a, %b;", a, b) ==
        std::vector<uint32_t>{0x7BFF7BFF, 0xFBFF7FFF, 0x3C007BFF});
  CHECK(run_instruction<uint32_t>("cvt.rn.relu.bf16x2.f32 %d, %a, %b;", std::vector<float>{-1},
                                  std::vector<float>{2}) == std::vector<uint32_t>{0x00004000});
  // Subnormal numbers are flushed if the instruction has .ftz.
  CHECK(run_instruction<uint16_t>("add.ftz.f16 %d, %a, %b;", std::vector<uint16_t>{0x0001, 0x8003, 0x0400},
                                  std::vector<uint16_t>{0x0001, 0x8001, 0x8401}) ==
        std::vector<uint16_t>{0x0000, 0x8000, 0x8000});
}

TEST_CASE("pairs of floats in one register") {
  const auto pair = [](float low, float high) {
    return bits_of_float(low) | uint64_t{bits_of_float(high)} << 32;
  };
  const std::vector<uint64_t> a = {pair(1.5f, -2)}, b = {pair(4, 3)}, c = {pair(0.25f, 100)};
  CHECK(run_instruction<uint64_t>("add.rn.f32x2 %d, %a, %b;", a, b) == std::vector<uint64_t>{pair(5.5f, 1)});
  CHECK(run_instruction<uint64_t>("sub.rn.f32x2 %d, %a, %b;", a, b) ==
        std::vector<uint64_t>{pair(-2.5f, -5)});
  CHECK(run_instruction<uint64_t>("mul.rn.f32x2 %d, %a, %b;", a, b) == std::vector<uint64_t>{pair(6, -6)});
  CHECK(run_instruction<uint64_t>("fma.rn.f32x2 %d, %a, %b, %c;", a, b, c) ==
        std::vector<uint64_t>{pair(6.25f, 94)});
  // A half operand and a float operand.
  CHECK(run_instruction<float>("add.rn.f32.f16 %d, %a, %b;", std::vector<uint16_t>{0x4200},
                               std::vector<float>{0.1f}) == std::vector<float>{3.1f});
  CHECK(run_instruction<float>("fma.rn.f32.bf16 %d, %a, %b, %c;", std::vector<uint16_t>{0x4040},
                               std::vector<uint16_t>{0x4000},
                               std::vector<float>{0.5f}) == std::vector<float>{6.5f});
}

TEST_CASE("minimum and maximum by magnitude") {
  const std::vector<float> a = {1, -5, -2, kNan}, b = {-3, 4, -2, 7};
  CHECK(run_instruction<float>("min.xorsign.abs.f32 %d, %a, %b;", a, b) == std::vector<float>{-1, -4, 2, 7});
  CHECK(run_instruction<float>("max.xorsign.abs.f32 %d, %a, %b;", a, b) == std::vector<float>{-3, -5, 2, 7});
  CHECK(run_instruction<float>("max.f32 %d, %a, %b, %c;", a, b, std::vector<float>{2, 9, -1, 1}) ==
        std::vector<float>{2, 9, -1, 7});
  CHECK(run_instruction<uint16_t>("max.xorsign.abs.f16 %d, %a, %b;", std::vector<uint16_t>{0x3C00},
                                  std::vector<uint16_t>{0xC200}) == std::vector<uint16_t>{0xC200});
}

TEST_CASE("packs two to eight narrow numbers into one register") {
  const std::vector<int32_t> a = {9, -9}, b = {3, 1};
  CHECK(run_instruction<uint32_t>("cvt.pack.sat.u4.s32.b32 %d, %a, %b, %c;", a, b,
                                  std::vector<uint32_t>{0xABC, 1}) == std::vector<uint32_t>{0xABC93, 0x101});
  CHECK(run_instruction<uint32_t>("cvt.pack.sat.s4.s32.b32 %d, %a, %b, %c;", a, b,
                                  std::vector<uint32_t>{0, 0}) == std::vector<uint32_t>{0x73, 0x81});
  CHECK(run_instruction<uint32_t>("cvt.pack.sat.s2.s32.b32 %d, %a, %b, %c;", a, b,
                                  std::vector<uint32_t>{5, 5}) == std::vector<uint32_t>{0x55, 0x59});
}

TEST_CASE("alloca and stackrestore allocate and free stack memory") {
  CHECK(run_instruction<uint32_t>(
            "{ .reg .pred %again; mov.u32 %t0, 0; mov.u32 %d, 0;\nL: stacksave.u64 %w0; alloca.u64 %w1, "
            "4096, 64;\n"
            "st.local.u32 [%w1+4092], %a; ld.local.u32 %t1, [%w1+4092]; add.u32 %d, %d, %t1; and.b64 %w2, "
            "%w1, 63;\n"
            "cvt.u32.u64 %t2, %w2; add.u32 %d, %d, %t2; stackrestore.u64 %w0; add.u32 %t0, %t0, 1;\n"
            "setp.lt.u32 %again, %t0, 1000; @%again bra L; }",
            std::vector<uint32_t>{3, 5}) == std::vector<uint32_t>{3000, 5000});
  CHECK_THROWS(
      run_instruction<uint32_t>("alloca.u64 %w1, 1000000000; mov.u32 %d, 0;", std::vector<uint32_t>{1}));
}

TEST_CASE("vector atomics add in memory") {
  Loaded loaded(
      ".version 8.1\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) { .reg .b64 %a; .reg "
      ".f32 %f<8>; "
      ".reg .b32 %r<4>; .reg .b16 %h<2>; ld.param.u64 %a, [p]; mov.f32 %f0, 0f3F800000; mov.f32 %f1, "
      "0f40000000;\n"
      "atom.global.v2.f32.add {%f1, %f0}, [%a], {%f0, %f1}; st.global.v2.f32 [%a+8], {%f1, %f0};\n"
      "mov.b32 %r0, 0x3C003C00; red.relaxed.gpu.global.v2.f16x2.add.noftz [%a+16], {%r0, %r0};\n"
      "createpolicy.fractional.L2::evict_first.b64 %a, 1.0; ret; }");
  auto* cells =
      device_array(std::vector<uint32_t>{bits_of_float(10), bits_of_float(20), 0, 0, 0x40003C00, 0x3C000000});
  CHECK(loaded.run("k", {}, cells).fault == FaultKind::none);
  CHECK(cells[0] == bits_of_float(11));
  CHECK(cells[1] == bits_of_float(22));
  CHECK(cells[2] == bits_of_float(10));
  CHECK(cells[3] == bits_of_float(20));
  CHECK(cells[4] == 0x42004000);
  CHECK(cells[5] == 0x40003C00);
}

TEST_CASE("exchanges 128 bits atomically") {
  Loaded loaded(
      ".version 8.3\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) { .reg .b64 %a, %x, "
      "%y; .reg .b128 "
      "%q<3>; ld.param.u64 %a, [p]; mov.b64 %x, 1; mov.b64 %y, 2; mov.b128 %q0, {%x, %y}; mov.b64 %x, 7; "
      "mov.b128 %q1, "
      "{%x, %x};\n"
      "atom.global.b128.cas %q2, [%a], %q0, %q1; st.global.b128 [%a+16], %q2; atom.global.b128.exch %q2, "
      "[%a], %q0; "
      "st.global.b128 [%a+32], %q2; ret; }");
  auto* cells = device_array(std::vector<uint64_t>{1, 2, 0, 0, 0, 0});
  CHECK(loaded.run("k", {}, cells).fault == FaultKind::none);
  CHECK(std::vector<uint64_t>(cells, cells + 6) == std::vector<uint64_t>{1, 2, 1, 2, 7, 7});
}
