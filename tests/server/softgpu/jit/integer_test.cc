// Tests integer instructions against C++.
#include <bit>
#include <limits>

#include "tests/server/softgpu/jit/instruction.h"
#include "tests/support/catch.h"

using namespace gpupool::softgpu;

namespace {

const std::vector<int32_t> kS32 = {
    0, 1, -1, 2, 7, -8, 31, 32, 33, 255, 65535, 0x12345678, -0x12345678, INT32_MAX, INT32_MIN, INT32_MIN + 1};
const std::vector<uint32_t> kU32 = {0,  1,   2,   3,      31,         32,         33,         63,
                                    64, 255, 256, 0xFFFF, 0x12345678, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
const std::vector<int64_t> kS64 = {
    0, 1, -1, 63, 64, 0x123456789ABCDEF, -0x123456789ABCDEF, INT64_MAX, INT64_MIN, INT32_MIN};
const std::vector<uint64_t> kU64 = {
    0, 1, 2, 63, 64, 0xFFFFFFFF, 0x100000000, 0x123456789ABCDEF0, 1ull << 63, UINT64_MAX};

template <typename D, typename A, typename B, typename Reference>
void check(const std::string& code, const std::vector<A>& as, const std::vector<B>& bs, Reference reference) {
  auto [a, b] = pairs(as, bs);
  auto result = run_instruction<D>(code, a, b);
  for (size_t i = 0; i < a.size(); ++i) {
    INFO(code << " a=" << a[i] << " b=" << b[i]);
    CHECK(result[i] == static_cast<D>(reference(a[i], b[i])));
  }
}

}  // namespace

TEST_CASE("addition, subtraction and multiplication wrap") {
  check<uint32_t>("add.u32 %d, %a, %b;", kU32, kU32, [](uint32_t a, uint32_t b) { return a + b; });
  check<uint32_t>("sub.s32 %d, %a, %b;", kU32, kU32, [](uint32_t a, uint32_t b) { return a - b; });
  check<uint64_t>("add.s64 %d, %a, %b;", kU64, kU64, [](uint64_t a, uint64_t b) { return a + b; });
  check<uint16_t>("add.s16 %d, %a, %b;", std::vector<uint16_t>{0, 1, 0xFFFF, 0x8000},
                  std::vector<uint16_t>{1, 0xFFFF}, [](uint16_t a, uint16_t b) { return a + b; });
  check<uint32_t>("mul.lo.u32 %d, %a, %b;", kU32, kU32, [](uint32_t a, uint32_t b) { return a * b; });
  check<uint32_t>("mul.hi.u32 %d, %a, %b;", kU32, kU32,
                  [](uint32_t a, uint32_t b) { return uint64_t{a} * b >> 32; });
  check<int32_t>("mul.hi.s32 %d, %a, %b;", kS32, kS32,
                 [](int32_t a, int32_t b) { return int64_t{a} * b >> 32; });
  check<uint64_t>("mul.hi.u64 %d, %a, %b;", kU64, kU64, [](uint64_t a, uint64_t b) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
  });
  check<int64_t>("mul.wide.s32 %d, %a, %b;", kS32, kS32, [](int32_t a, int32_t b) { return int64_t{a} * b; });
  check<uint64_t>("mad.wide.u32 %d, %a, %b, 5;", kU32, kU32,
                  [](uint32_t a, uint32_t b) { return uint64_t{a} * b + 5; });
  check<int32_t>("add.sat.s32 %d, %a, %b;", kS32, kS32, [](int32_t a, int32_t b) {
    return std::clamp<int64_t>(int64_t{a} + b, INT32_MIN, INT32_MAX);
  });
  check<int32_t>("sub.sat.s32 %d, %a, %b;", kS32, kS32, [](int32_t a, int32_t b) {
    return std::clamp<int64_t>(int64_t{a} - b, INT32_MIN, INT32_MAX);
  });
  check<uint32_t>("sad.u32 %d, %a, %b, 3;", kU32, kU32,
                  [](uint32_t a, uint32_t b) { return (a > b ? a - b : b - a) + 3; });
  check<uint32_t>("mul24.lo.u32 %d, %a, %b;", kU32, kU32,
                  [](uint32_t a, uint32_t b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); });
}

TEST_CASE("division by zero gives all ones and overflow wraps") {
  check<uint32_t>("div.u32 %d, %a, %b;", kU32, kU32, [](uint32_t a, uint32_t b) { return b ? a / b : ~0u; });
  check<uint32_t>("rem.u32 %d, %a, %b;", kU32, kU32, [](uint32_t a, uint32_t b) { return b ? a % b : ~0u; });
  auto quotient = [](int64_t a, int64_t b) { return b ? a / b : -1; };
  check<int32_t>("div.s32 %d, %a, %b;", kS32, kS32, quotient);
  check<int32_t>("rem.s32 %d, %a, %b;", kS32, kS32, [](int64_t a, int64_t b) { return b ? a % b : -1; });
  check<int64_t>("div.s64 %d, %a, %b;", kS64, kS64, [](int64_t a, int64_t b) {
    return b == 0 ? -1 : b == -1 ? static_cast<int64_t>(0 - static_cast<uint64_t>(a)) : a / b;
  });
  check<uint64_t>("rem.u64 %d, %a, %b;", kU64, kU64,
                  [](uint64_t a, uint64_t b) { return b ? a % b : ~0ull; });
}

TEST_CASE("carries travel through addc, subc and madc") {
  check<uint64_t>(
      "mov.b64 {%t0, %t1}, %a; mov.b64 {%t2, %t3}, %b; add.cc.u32 %t4, %t0, %t2; addc.u32 %t5, %t1, %t3; "
      "mov.b64 %d, {%t4, %t5};",
      kU64, kU64, [](uint64_t a, uint64_t b) { return a + b; });
  check<uint64_t>(
      "mov.b64 {%t0, %t1}, %a; mov.b64 {%t2, %t3}, %b; sub.cc.u32 %t4, %t0, %t2; subc.u32 %t5, %t1, %t3; "
      "mov.b64 %d, {%t4, %t5};",
      kU64, kU64, [](uint64_t a, uint64_t b) { return a - b; });
  check<uint32_t>("sub.cc.u32 %t0, %a, %b; subc.u32 %d, 0, 0;", kU32, kU32,
                  [](uint32_t a, uint32_t b) { return a < b ? ~0u : 0; });
  // The carry flag after a subtraction, as addc sees it, means "no borrow"; nvcc's 128-bit division relies on
  // it.
  check<uint32_t>("sub.cc.u32 %t0, %a, %b; addc.u32 %d, 0, 0;", kU32, kU32,
                  [](uint32_t a, uint32_t b) { return a >= b; });
  check<uint32_t>("sub.cc.u32 %t0, %a, %b; subc.cc.u32 %t1, 5, 5; addc.u32 %d, 0, 0;", kU32, kU32,
                  [](uint32_t a, uint32_t b) { return a >= b; });
  check<uint64_t>("mad.lo.cc.u32 %t0, %a, %b, %a; madc.hi.u32 %t1, %a, %b, 0; mov.b64 %d, {%t0, %t1};", kU32,
                  kU32, [](uint32_t a, uint32_t b) { return uint64_t{a} * b + a; });
  check<uint32_t>("add.cc.u32 %t0, %a, %b; addc.cc.u32 %t1, 0xFFFFFFFF, 0; addc.u32 %d, 0, 0;", kU32, kU32,
                  [](uint32_t a, uint32_t b) { return (uint64_t{a} + b) >> 32; });
}

TEST_CASE("shifts clamp") {
  check<uint32_t>("shl.b32 %d, %a, %b;", kU32, kU32,
                  [](uint32_t a, uint32_t b) { return b > 31 ? 0 : a << b; });
  check<uint32_t>("shr.u32 %d, %a, %b;", kU32, kU32,
                  [](uint32_t a, uint32_t b) { return b > 31 ? 0 : a >> b; });
  check<int32_t>("shr.s32 %d, %a, %b;", kS32, kU32,
                 [](int32_t a, uint32_t b) { return a >> std::min(b, 31u); });
  check<uint64_t>("shl.b64 %d, %a, %b;", kU64, kU32,
                  [](uint64_t a, uint32_t b) { return b > 63 ? 0 : a << b; });
  check<int64_t>("shr.s64 %d, %a, %b;", kS64, kU32,
                 [](int64_t a, uint32_t b) { return a >> std::min(b, 63u); });
  check<uint16_t>("shl.b16 %d, %a, %b;", std::vector<uint16_t>{1, 0x8001, 0xFFFF},
                  std::vector<uint32_t>{0, 1, 15, 16, 0x10000, 0xFFFFFFFF},
                  [](uint16_t a, uint32_t b) { return b > 15 ? 0 : a << b; });
  auto both = [](uint32_t a, uint32_t b) { return uint64_t{b} << 32 | a; };
  for (uint32_t n : {0u, 1u, 5u, 31u, 32u, 33u, 200u}) {
    std::string s = std::to_string(n);
    check<uint32_t>("mov.u32 %t0, " + s + "; shf.l.clamp.b32 %d, %a, %b, %t0;", kU32, kU32,
                    [&](uint32_t a, uint32_t b) { return (both(a, b) << std::min(n, 32u)) >> 32; });
    check<uint32_t>("mov.u32 %t0, " + s + "; shf.r.clamp.b32 %d, %a, %b, %t0;", kU32, kU32,
                    [&](uint32_t a, uint32_t b) { return both(a, b) >> std::min(n, 32u); });
    check<uint32_t>("shf.l.wrap.b32 %d, %a, %b, " + s + ";", kU32, kU32,
                    [&](uint32_t a, uint32_t b) { return (both(a, b) << (n & 31)) >> 32; });
    check<uint32_t>("shf.r.wrap.b32 %d, %a, %b, " + s + ";", kU32, kU32,
                    [&](uint32_t a, uint32_t b) { return both(a, b) >> (n & 31); });
  }
}

TEST_CASE("bit fields") {
  for (uint32_t length : {0u, 1u, 8u, 31u, 32u, 40u, 255u}) {
    std::string s = std::to_string(length);
    // The PTX ISA's own pseudo code.
    auto extract = [&](auto value, uint32_t position, int bits) {
      using T = decltype(value);
      position &= 255;
      int msb = bits - 1;
      bool sign =
          std::is_signed_v<T> && length &&
          (static_cast<uint64_t>(value) >> std::min<int>(static_cast<int>(position + length) - 1, msb) & 1);
      uint64_t d = 0;
      for (int i = 0; i <= msb; ++i) {
        bool bit = i < static_cast<int>(length) && static_cast<int>(position) + i <= msb
                       ? static_cast<uint64_t>(value) >> (position + static_cast<uint32_t>(i)) & 1
                       : sign;
        d |= uint64_t{bit} << i;
      }
      return static_cast<T>(d);
    };
    check<uint32_t>("bfe.u32 %d, %a, %b, " + s + ";", kU32, kU32,
                    [&](uint32_t a, uint32_t b) { return extract(a, b, 32); });
    check<int32_t>("bfe.s32 %d, %a, %b, " + s + ";", kS32, kU32,
                   [&](int32_t a, uint32_t b) { return extract(a, b, 32); });
    check<int64_t>("bfe.s64 %d, %a, %b, " + s + ";", kS64, kU32,
                   [&](int64_t a, uint32_t b) { return extract(a, b, 64); });
    check<uint32_t>("bfi.b32 %d, %a, 0x5A5A5A5A, %b, " + s + ";", kU32, kU32, [&](uint32_t a, uint32_t b) {
      uint32_t d = 0x5A5A5A5A, position = b & 255;
      for (uint32_t i = 0; i < length && position + i < 32; ++i)
        d = (d & ~(1u << (position + i))) | ((i < 32 ? a >> i & 1 : 0) << (position + i));
      return d;
    });
  }
  check<uint32_t>("bmsk.clamp.b32 %d, %a, %b;", kU32, kU32, [](uint32_t a, uint32_t b) {
    uint64_t ones = b > 31 ? 0xFFFFFFFF : (1ull << b) - 1;
    return a > 31 ? 0 : ones << a;
  });
  check<int32_t>("szext.clamp.s32 %d, %a, %b;", kS32, kU32, [](int32_t a, uint32_t b) {
    if (b == 0) return 0;
    return b > 31 ? a : static_cast<int32_t>(static_cast<uint32_t>(a) << (32 - b)) >> (32 - b);
  });
}

TEST_CASE("counting and finding bits") {
  auto one = [](const std::string& code, auto values, auto reference) {
    using A = typename decltype(values)::value_type;
    auto result = run_instruction<uint32_t, A>(code, values);
    for (size_t i = 0; i < values.size(); ++i) {
      INFO(code << " a=" << values[i]);
      CHECK(result[i] == static_cast<uint32_t>(reference(values[i])));
    }
  };
  one("popc.b32 %d, %a;", kU32, [](uint32_t a) { return std::popcount(a); });
  one("popc.b64 %d, %a;", kU64, [](uint64_t a) { return std::popcount(a); });
  one("clz.b32 %d, %a;", kU32, [](uint32_t a) { return std::countl_zero(a); });
  one("clz.b64 %d, %a;", kU64, [](uint64_t a) { return std::countl_zero(a); });
  one("brev.b32 %d, %a;", kU32, [](uint32_t a) {
    uint32_t r = 0;
    for (int i = 0; i < 32; ++i) r |= (a >> i & 1) << (31 - i);
    return r;
  });
  one("bfind.u32 %d, %a;", kU32, [](uint32_t a) { return a ? 31 - std::countl_zero(a) : -1; });
  one("bfind.s32 %d, %a;", kS32, [](int32_t a) {
    auto v = static_cast<uint32_t>(a < 0 ? ~a : a);
    return v ? 31 - std::countl_zero(v) : -1;
  });
  one("bfind.shiftamt.u64 %d, %a;", kU64, [](uint64_t a) { return a ? std::countl_zero(a) : -1; });
  one("fns.b32 %d, %a, 0, 2;", kU32,
      [](uint32_t a) { return std::popcount(a) < 2 ? -1 : std::countr_zero(a & (a - 1)); });
  one("cnot.b32 %d, %a;", kU32, [](uint32_t a) { return a == 0; });
}

TEST_CASE("logic tables and byte permutation") {
  for (uint32_t table :
       {0x00u, 0xFFu, 0x96u, 0xE8u, 0xCAu, 0xF8u, 0x1Eu, 0x78u, 0x3Cu, 0x5Au, 0x80u, 0xFEu, 0x27u, 0x6Du})
    check<uint32_t>("lop3.b32 %d, %a, %b, 0x0F0FA5C3, " + std::to_string(table) + ";", kU32, kU32,
                    [&](uint32_t a, uint32_t b) {
                      uint32_t c = 0x0F0FA5C3, d = 0;
                      for (int i = 0; i < 32; ++i)
                        d |= (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i;
                      return d;
                    });
  auto permute = [](uint32_t a, uint32_t b, uint32_t control) {
    uint64_t both = uint64_t{b} << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; ++i) {
      uint32_t selector = control >> (4 * i) & 15;
      uint32_t byte = both >> ((selector & 7) * 8) & 255;
      if (selector & 8) byte = byte & 128 ? 255 : 0;
      d |= byte << (8 * i);
    }
    return d;
  };
  for (uint32_t control : {0x3210u, 0x0123u, 0x7654u, 0x5410u, 0xFEDCu, 0x8888u, 0x4321u}) {
    check<uint32_t>("prmt.b32 %d, %a, %b, " + std::to_string(control) + ";", kU32, kU32,
                    [&](uint32_t a, uint32_t b) { return permute(a, b, control); });
    check<uint32_t>(
        "mov.u32 %t0, " + std::to_string(control) + "; xor.b32 %t0, %t0, %a; prmt.b32 %d, %a, %b, %t0;", kU32,
        kU32, [&](uint32_t a, uint32_t b) { return permute(a, b, control ^ a); });
  }
  check<uint32_t>("prmt.b32.f4e %d, %a, %b, 1;", kU32, kU32,
                  [&](uint32_t a, uint32_t b) { return permute(a, b, 0x4321); });
  check<uint32_t>("prmt.b32.b4e %d, %a, %b, 1;", kU32, kU32,
                  [&](uint32_t a, uint32_t b) { return permute(a, b, 0x6701); });
  check<uint32_t>("prmt.b32.rc16 %d, %a, %b, 1;", kU32, kU32,
                  [&](uint32_t a, uint32_t b) { return permute(a, b, 0x3232); });
}

TEST_CASE("comparisons, minimum and selection") {
  check<int32_t>("min.s32 %d, %a, %b;", kS32, kS32, [](int32_t a, int32_t b) { return std::min(a, b); });
  check<uint32_t>("max.u32 %d, %a, %b;", kU32, kU32, [](uint32_t a, uint32_t b) { return std::max(a, b); });
  check<uint32_t>("setp.lt.s32 %p, %a, %b; selp.u32 %d, 1, 2, %p;", kS32, kS32,
                  [](int32_t a, int32_t b) { return a < b ? 1 : 2; });
  check<uint32_t>("setp.hi.s32 %p, %a, %b; selp.u32 %d, 1, 2, %p;", kU32, kU32,
                  [](uint32_t a, uint32_t b) { return a > b ? 1 : 2; });
  check<uint32_t>(
      "setp.ne.u32 %q, %a, 0; setp.ge.and.u32 %p|%q, %a, %b, !%q; selp.u32 %t0, 1, 0, %p; selp.u32 %t1, 2, "
      "0, %q; or.b32 %d, %t0, %t1;",
      kU32, kU32,
      [](uint32_t a, uint32_t b) { return (a >= b && a == 0 ? 1 : 0) | (!(a >= b) && a == 0 ? 2 : 0); });
  check<uint32_t>("set.le.u32.s32 %d, %a, %b;", kS32, kS32,
                  [](int32_t a, int32_t b) { return a <= b ? ~0u : 0; });
  check<uint32_t>("slct.u32.s32 %d, %b, 9, %a;", kS32, kU32,
                  [](int32_t a, uint32_t b) { return a >= 0 ? b : 9; });
  check<int32_t>("dp4a.s32.s32 %d, %a, %b, 100;", kS32, kS32, [](int32_t a, int32_t b) {
    int32_t sum = 100;
    for (int i = 0; i < 4; ++i) sum += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
    return sum;
  });
  check<int32_t>("dp2a.hi.s32.u32 %d, %a, %b, 0;", kS32, kU32, [](int32_t a, uint32_t b) {
    return static_cast<int16_t>(a) * static_cast<int32_t>(b >> 16 & 255) +
           static_cast<int16_t>(a >> 16) * static_cast<int32_t>(b >> 24);
  });
}

TEST_CASE("integer conversions extend, cut and saturate") {
  check<uint32_t>("cvt.s32.s8 %d, %a;", kS32, std::vector<uint32_t>{0},
                  [](int32_t a, uint32_t) { return static_cast<int8_t>(a); });
  check<uint64_t>("cvt.u64.u32 %d, %a;", kU32, std::vector<uint32_t>{0},
                  [](uint32_t a, uint32_t) { return a; });
  check<int64_t>("cvt.s64.s32 %d, %a;", kS32, std::vector<uint32_t>{0},
                 [](int32_t a, uint32_t) { return a; });
  check<uint32_t>("cvt.u32.u64 %d, %a;", kU64, std::vector<uint32_t>{0},
                  [](uint64_t a, uint32_t) { return a; });
  check<int32_t>("cvt.sat.s8.s32 %t0, %a; mov.b32 %d, %t0;", kS32, std::vector<uint32_t>{0},
                 [](int32_t a, uint32_t) { return std::clamp(a, -128, 127); });
  check<uint32_t>("cvt.sat.u32.s64 %d, %a;", kS64, std::vector<uint32_t>{0},
                  [](int64_t a, uint32_t) { return std::clamp<int64_t>(a, 0, UINT32_MAX); });
  check<int32_t>("cvt.sat.s32.u32 %d, %a;", kU32, std::vector<uint32_t>{0},
                 [](uint32_t a, uint32_t) { return std::min<uint32_t>(a, INT32_MAX); });
  check<uint32_t>("cvt.pack.sat.u8.s32.b32 %d, %a, %b, 0x1234;", kS32, kS32, [](int32_t a, int32_t b) {
    return 0x12340000u | static_cast<uint32_t>(std::clamp(a, 0, 255)) << 8 |
           static_cast<uint32_t>(std::clamp(b, 0, 255));
  });
}

TEST_CASE("computes four bytes or two halves per instruction") {
  auto lanes = [](int bits, bool is_signed, uint32_t a, uint32_t b, auto reference) {
    uint32_t d = 0;
    for (int n = 0; n < 32 / bits; ++n) {
      auto part = [&](uint32_t v) {
        int64_t raw = v >> (n * bits) & ((1u << bits) - 1);
        return is_signed && raw >> (bits - 1) ? raw - (1ll << bits) : raw;
      };
      d |= (static_cast<uint32_t>(reference(part(a), part(b))) & ((1u << bits) - 1)) << (n * bits);
    }
    return d;
  };
  check<uint32_t>("vadd4.u32.u32.u32.sat %d, %a, %b, 0;", kU32, kU32, [&](uint32_t a, uint32_t b) {
    return lanes(8, false, a, b, [](int64_t x, int64_t y) { return std::min<int64_t>(x + y, 255); });
  });
  check<uint32_t>("vabsdiff2.u32.s32.s32 %d, %a, %b, 0;", kU32, kU32, [&](uint32_t a, uint32_t b) {
    return lanes(16, true, a, b, [](int64_t x, int64_t y) { return std::abs(x - y); });
  });
  check<uint32_t>("vmax4.s32.s32.s32 %d, %a, %b, 0;", kU32, kU32, [&](uint32_t a, uint32_t b) {
    return lanes(8, true, a, b, [](int64_t x, int64_t y) { return std::max(x, y); });
  });
  check<uint32_t>("vabsdiff4.u32.u32.u32.add %d, %a, %b, 7;", kU32, kU32, [&](uint32_t a, uint32_t b) {
    uint32_t sum = 7;
    for (int n = 0; n < 4; ++n)
      sum += static_cast<uint32_t>(
          std::abs(static_cast<int>(a >> 8 * n & 255) - static_cast<int>(b >> 8 * n & 255)));
    return sum;
  });
}
