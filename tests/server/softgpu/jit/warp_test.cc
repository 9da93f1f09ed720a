// Tests instructions in which the threads of a warp or the blocks of a cluster cooperate: matrix products and
// transfers, clusters. Runs on the real executor; fragments are laid out as in the tables of the PTX ISA.
#include <bit>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "server/softgpu/exec/grid.h"
#include "server/softgpu/jit/program.h"
#include "server/softgpu/memory/address_space.h"
#include "tests/support/catch.h"

using namespace gpupool::softgpu;

namespace {

uint64_t device_bytes(uint64_t size) {
  REQUIRE(reserve_range());
  return allocate_host((size + 4095) / 4096 * 4096, 4096).value();
}

struct Shape {
  uint32_t blocks = 1, threads = 32, cluster = 0;
};

// Runs kernel "k" with one pointer to `memory`, which it may change.
GridResult run(const std::string& text, std::vector<uint32_t>& memory, Shape shape = {}) {
  static auto executor = GridExecutor::create(2, nullptr);
  std::string_view view = text;
  auto compiled = compile({&view, 1}, {});
  if (auto* error = std::get_if<CompileError>(&compiled)) FAIL(error->message);
  const auto program = std::get<std::shared_ptr<const Program>>(compiled);
  const KernelInfo* kernel = program->find_kernel("k");
  REQUIRE(kernel);
  auto code = program->code(*kernel);
  if (auto* error = std::get_if<CompileError>(&code)) FAIL(error->message);
  const uint64_t address = device_bytes(memory.size() * 4 + 1);
  std::memcpy(reinterpret_cast<void*>(address), memory.data(), memory.size() * 4);
  GridRequest request;
  request.code = std::get<KernelCode>(code);
  request.kernel_name = "k";
  request.grid_dim[0] = shape.blocks;
  request.block_dim[0] = shape.threads;
  request.static_shared_bytes = kernel->static_shared_bytes;
  if (shape.cluster)
    request.cluster_dim[0] = shape.cluster, request.cluster_dim[1] = request.cluster_dim[2] = 1;
  request.params.resize(8);
  std::memcpy(request.params.data(), &address, 8);
  std::promise<GridResult> done;
  executor->submit(std::move(request), [&](GridResult result) { done.set_value(std::move(result)); });
  GridResult result = done.get_future().get();
  std::memcpy(memory.data(), reinterpret_cast<void*>(address), memory.size() * 4);
  return result;
}

std::string kernel(const std::string& body, const std::string& variables = "") {
  return ".version 8.4\n.target sm_90\n.address_size 64\n" + variables +
         "\n.visible .entry k(.param .u64 p) { .reg .b64 %p, %x, %y; .reg .b32 %lane, %r<64>; .reg .f64 "
         "%e<16>; .reg .pred "
         "%q<4>;\nld.param.u64 %p, [p]; mov.u32 %lane, %laneid;\n" +
         body + "\nret; }";
}

std::string registers(uint32_t first, uint32_t count) {
  std::string text = "{";
  for (uint32_t n = 0; n < count; ++n) text += (n ? ", %r" : "%r") + std::to_string(first + n);
  return text + "}";
}

struct Place {
  uint32_t row, column;
};
// Position of element i of a lane: group is lane / 4, part is lane % 4.
using Layout = std::function<Place(uint32_t group, uint32_t part, uint32_t i)>;

struct Product {
  std::string name;
  uint32_t m, n, k, bits, d_bits;
  Layout a, b, c;
  std::function<uint32_t(int)> encode, encode_d;  // for small integers
};

uint32_t half_bits(int value) {
  static const uint32_t kHalves[] = {0, 0x3C00, 0x4000, 0x4200, 0x4400};
  return value < 0 ? half_bits(-value) | 0x8000 : kHalves[value];
}
uint32_t single_bits(int value) {
  return std::bit_cast<uint32_t>(static_cast<float>(value));
}
uint32_t bfloat_bits(int value) {
  return single_bits(value) >> 16;
}
uint32_t integer_bits(int value) {
  return static_cast<uint32_t>(value);
}
uint32_t e4m3_bits(int value) {
  static const uint32_t kBits[] = {0, 0x38, 0x40, 0x44, 0x48};
  return value < 0 ? e4m3_bits(-value) | 0x80 : kBits[value];
}

Place c_of_16(uint32_t group, uint32_t part, uint32_t i) {
  return {group + (i < 2 ? 0 : 8), part * 2 + (i & 1)};
}
Place c_of_8(uint32_t group, uint32_t part, uint32_t i) {
  return {group, part * 2 + i};
}

std::vector<Product> products() {
  std::vector<Product> all;
  const Layout a16 = [](uint32_t g, uint32_t p, uint32_t i) {  // m16n8k16, 16 bits
    return Place{g + ((i & 2) ? 8 : 0), p * 2 + (i & 1) + (i < 4 ? 0 : 8)};
  };
  const Layout b16 = [](uint32_t g, uint32_t p, uint32_t i) {
    return Place{p * 2 + (i & 1) + (i < 2 ? 0 : 8), g};
  };
  const Layout a8 = [](uint32_t g, uint32_t p, uint32_t i) {
    return Place{g + (i < 2 ? 0 : 8), p * 2 + (i & 1)};
  };
  const Layout a32 = [](uint32_t g, uint32_t p, uint32_t i) {  // tf32
    return Place{g + ((i & 1) ? 8 : 0), p + (i < 2 ? 0 : 4)};
  };
  const Layout b32 = [](uint32_t g, uint32_t p, uint32_t i) { return Place{p + 4 * i, g}; };
  const Layout a_bytes = [](uint32_t g, uint32_t p, uint32_t i) {  // m16n8k32
    return Place{g + ((i / 4) & 1 ? 8 : 0), p * 4 + (i & 3) + (i < 8 ? 0 : 16)};
  };
  const Layout b_bytes = [](uint32_t g, uint32_t p, uint32_t i) {
    return Place{p * 4 + (i & 3) + (i < 4 ? 0 : 16), g};
  };
  const Layout a_nibbles = [](uint32_t g, uint32_t p, uint32_t i) {  // m16n8k64
    return Place{g + ((i / 8) & 1 ? 8 : 0), p * 8 + (i & 7) + (i < 16 ? 0 : 32)};
  };
  const Layout b_nibbles = [](uint32_t g, uint32_t p, uint32_t i) {
    return Place{p * 8 + (i & 7) + (i < 8 ? 0 : 32), g};
  };
  const Layout a_small = [](uint32_t g, uint32_t p, uint32_t i) { return Place{g, p * 4 + i}; };  // m8n8k16
  const Layout b_small = [](uint32_t g, uint32_t p, uint32_t i) { return Place{p * 4 + i, g}; };
  all.push_back(
      {"m16n8k16.row.col.f32.f16.f16.f32", 16, 8, 16, 16, 32, a16, b16, c_of_16, half_bits, single_bits});
  all.push_back(
      {"m16n8k16.row.col.f32.bf16.bf16.f32", 16, 8, 16, 16, 32, a16, b16, c_of_16, bfloat_bits, single_bits});
  all.push_back({"m16n8k8.row.col.f32.f16.f16.f32", 16, 8, 8, 16, 32, a8,
                 [](uint32_t g, uint32_t p, uint32_t i) {
                   return Place{p * 2 + i, g};
                 },
                 c_of_16, half_bits, single_bits});
  all.push_back(
      {"m16n8k8.row.col.f32.tf32.tf32.f32", 16, 8, 8, 32, 32, a32, b32, c_of_16, single_bits, single_bits});
  all.push_back(
      {"m16n8k4.row.col.f32.tf32.tf32.f32", 16, 8, 4, 32, 32, a32, b32, c_of_16, single_bits, single_bits});
  all.push_back({"m16n8k32.row.col.s32.s8.s8.s32", 16, 8, 32, 8, 32, a_bytes, b_bytes, c_of_16, integer_bits,
                 integer_bits});
  all.push_back({"m16n8k32.row.col.f32.e4m3.e4m3.f32", 16, 8, 32, 8, 32, a_bytes, b_bytes, c_of_16, e4m3_bits,
                 single_bits});
  all.push_back({"m8n8k16.row.col.s32.s8.s8.s32", 8, 8, 16, 8, 32, a_small, b_small, c_of_8, integer_bits,
                 integer_bits});
  all.push_back({"m16n8k64.row.col.s32.s4.s4.s32", 16, 8, 64, 4, 32, a_nibbles, b_nibbles, c_of_16,
                 integer_bits, integer_bits});
  return all;
}

int number(uint32_t x, uint32_t y, uint32_t salt) {
  return static_cast<int>((x * 7 + y * 13 + salt) % 9) - 4;
}

}  // namespace

TEST_CASE("an unrolled loop over matrix products fits on a thread's stack, however long it is") {
  constexpr int kProducts = 600;  // arrays of 128 bytes each: more than the 64 KiB of a stack in all
  std::string body = "mov.b32 %r0, 0x3C003C00;\n";  // 1.0, 1.0
  for (int n = 8; n < 16; ++n) body += "mov.b32 %r" + std::to_string(n) + ", 0;\n";
  const std::string ones = "{%r0, %r0, %r0, %r0, %r0, %r0, %r0, %r0}", sums = registers(8, 8);
  for (int n = 0; n < kProducts; ++n)
    body += "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 " + sums + ", " + ones + ", " + ones + ", " +
            sums + ";\n";
  body += "mul.wide.u32 %x, %lane, 4; add.u64 %x, %x, %p; st.global.b32 [%x], %r15;";
  std::vector<uint32_t> memory(32);
  const GridResult result = run(kernel(body), memory);
  CHECK(result.fault == FaultKind::none);
  for (const uint32_t sum : memory) CHECK(std::bit_cast<float>(sum) == 16.0f * kProducts);
}

// Programs rely on lock step: a lane's store must be visible to the other lanes' next matrix load, and a
// matrix store to their next load.
TEST_CASE("matrices pass through shared memory without a barrier") {
  const auto exchange = [](const std::string& barrier) {
    // %r1: the lane's word; %r2: a row of a matrix; %r3: another lane's word.
    std::string body =
        "mov.u32 %r0, tile; shl.b32 %r1, %lane, 2; add.u32 %r1, %r1, %r0;\n"
        "and.b32 %r2, %lane, 7; shl.b32 %r2, %r2, 4; add.u32 %r2, %r2, %r0;\n"
        "add.u32 %r3, %lane, 5; and.b32 %r3, %r3, 31; shl.b32 %r3, %r3, 2;\n"
        "add.u32 %r3, %r3, %r0;\n"
        "mov.u32 %r4, %lane; mov.u32 %r5, 0;\n";
    for (int round = 0; round < 4; ++round) {
      body +=
          "st.shared.u32 [%r1], %r4; st.shared.u32 [%r1+128], %r4; st.shared.u32 [%r1+256], %r4; "
          "st.shared.u32 [%r1+384], %r4;\n" +
          barrier + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r2];\n" + barrier +
          "mad.lo.u32 %r5, %r5, 31, %r6; mad.lo.u32 %r4, %r4, 7, 1;\n"
          "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2], {%r4};\n" +
          barrier + "ld.shared.u32 %r6, [%r3]; mad.lo.u32 %r5, %r5, 31, %r6; add.u32 %r4, %r4, 3;\n" +
          barrier + "st.shared.u32 [%r1], %r4;\n" + barrier +
          "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 " + registers(8, 8) + ", [tile], 16;\n" +
          barrier +
          "mad.lo.u32 %r5, %r5, 31, %r8; mad.lo.u32 %r5, %r5, 31, %r11; and.b32 %r16, %r4, 0x3c003c00;\n"
          "st.shared.u32 [%r1], %r16;\n" +
          barrier + "ld.shared.u32 %r6, [%r3]; mad.lo.u32 %r5, %r5, 31, %r6;\n" + barrier +
          "wmma.store.d.sync.aligned.row.m16n16k16.shared.f16 [tile], {%r16, %r16, %r16, %r16}, 16;\n" +
          barrier + "wmma.load.c.sync.aligned.row.m16n16k16.shared.f16 " + registers(20, 4) +
          ", [tile], 16;\n" + barrier + "wmma.store.d.sync.aligned.col.m16n16k16.shared.f16 [tile], " +
          registers(20, 4) + ", 16;\n" + barrier +
          "ld.shared.u32 %r6, [%r3]; mad.lo.u32 %r5, %r5, 31, %r6; mad.lo.u32 %r4, %r4, 1025, 77;\n" +
          barrier;
    }
    body += "mul.wide.u32 %x, %lane, 4; add.u64 %x, %x, %p; st.global.b32 [%x], %r5;";
    std::vector<uint32_t> memory(32);
    CHECK(run(kernel(body, ".shared .align 32 .b8 tile[512];"), memory).fault == FaultKind::none);
    return memory;
  };
  CHECK(exchange("") == exchange("bar.warp.sync 0xffffffff;\n"));
}

TEST_CASE("products of matrices") {
  for (const Product& product : products()) {
    const uint32_t a = product.m * product.k * product.bits / 1024,
                   b = product.k * product.n * product.bits / 1024, c = product.m * product.n / 32,
                   all = a + b + c;
    std::vector<uint32_t> memory(32 * (all + c));
    const auto fill = [&](uint32_t lane, uint32_t first, uint32_t words, uint32_t bits, const Layout& layout,
                          uint32_t salt, const auto& encode) {
      for (uint32_t i = 0; i < words * 32 / bits; ++i) {
        const Place place = layout(lane / 4, lane % 4, i);
        const uint32_t mask = bits == 32 ? ~0u : (1u << bits) - 1;
        memory[lane * all + first + i * bits / 32] |= (encode(number(place.row, place.column, salt)) & mask)
                                                      << i * bits % 32;
      }
    };
    for (uint32_t lane = 0; lane < 32; ++lane) {
      fill(lane, 0, a, product.bits, product.a, 1, product.encode);
      fill(lane, a, b, product.bits, product.b, 2, product.encode);
      fill(lane, a + b, c, 32, product.c, 3, product.encode_d);
    }
    std::string body = "mad.wide.u32 %x, %lane, " + std::to_string(4 * all) + ", %p;\n";
    for (uint32_t n = 0; n < all; ++n)
      body += "ld.global.u32 %r" + std::to_string(n) + ", [%x+" + std::to_string(4 * n) + "];\n";
    body += "mma.sync.aligned." + product.name + " " + registers(40, c) + ", " + registers(0, a) + ", " +
            registers(a, b) + ", " + registers(a + b, c) + ";\nmad.wide.u32 %x, %lane, " +
            std::to_string(4 * c) + ", %p;\n";
    for (uint32_t n = 0; n < c; ++n)
      body += "st.global.u32 [%x+" + std::to_string(4 * (32 * all + n)) + "], %r" + std::to_string(40 + n) +
              ";\n";
    INFO(product.name);
    CHECK(run(kernel(body), memory).fault == FaultKind::none);
    for (uint32_t lane = 0; lane < 32; ++lane)
      for (uint32_t i = 0; i < c; ++i) {
        const Place place = product.c(lane / 4, lane % 4, i);
        int sum = number(place.row, place.column, 3);
        for (uint32_t k = 0; k < product.k; ++k) sum += number(place.row, k, 1) * number(k, place.column, 2);
        CHECK(memory[32 * all + lane * c + i] == product.encode_d(sum));
      }
  }
}

TEST_CASE("products of doubles, halves, single bits") {
  // m8n8k4 in f64: one element of a and b each, two elements of c.
  std::vector<uint32_t> memory(32 * 4);
  CHECK(run(kernel("and.b32 %r0, %lane, 3; shr.u32 %r1, %lane, 2; cvt.rn.f64.u32 %e0, %r1; cvt.rn.f64.u32 "
                   "%e1, %r0; "
                   "mov.f64 %e2, 0d3FF0000000000000;\nmma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%e3, "
                   "%e4}, {%e0}, "
                   "{%e1}, {%e2, %e2};\nmad.wide.u32 %x, %lane, 16, %p; st.global.v2.f64 [%x], {%e3, %e4};"),
            memory)
            .fault == FaultKind::none);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    double got;
    std::memcpy(&got, &memory[lane * 4], 8);
    CHECK(got == 1 + lane / 4 * (0 + 1 + 2 + 3));  // a(row, k) = row, b(k, column) = k
  }
  // Sums in f16: 16 products of ones, and one more.
  std::vector<uint32_t> halves(64);
  const std::string ones = "mov.b32 %r0, 0x3C003C00;\n";
  CHECK(run(kernel(ones + "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r1, %r2}, {%r0, %r0, %r0, "
                          "%r0}, {%r0, %r0}, "
                          "{%r0, %r0};\nmad.wide.u32 %x, %lane, 8, %p; st.global.v2.u32 [%x], {%r1, %r2};"),
            halves)
            .fault == FaultKind::none);
  CHECK(halves == std::vector<uint32_t>(64, 0x4C404C40));
  // Four m8n8k4 products at once, with four terms each.
  std::vector<uint32_t> quads(32 * 8);
  std::string store = "mad.wide.u32 %x, %lane, 32, %p;\n";
  for (int n = 0; n < 8; ++n)
    store += "st.global.u32 [%x+" + std::to_string(4 * n) + "], %r" + std::to_string(8 + n) + ";\n";
  CHECK(run(kernel(ones + "mov.b32 %r1, 0;\nmma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 " +
                   registers(8, 8) + ", {%r0, %r0}, {%r0, %r0}, {%r1, %r1, %r1, %r1, %r1, %r1, %r1, %r1};\n" +
                   store),
            quads)
            .fault == FaultKind::none);
  CHECK(quads == std::vector<uint32_t>(32 * 8, single_bits(4)));
  for (const bool with_and : {false, true}) {
    std::vector<uint32_t> bits(64);
    CHECK(run(kernel("mov.b32 %r0, 0x0FF00F0F; mov.b32 %r1, 0x333333CC; mov.b32 %r2, 5;\n"
                     "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32." +
                     std::string(with_and ? "and" : "xor") +
                     ".popc {%r4, %r5}, {%r0}, {%r1}, {%r2, %r2};\nmad.wide.u32 %x, %lane, 8, %p; "
                     "st.global.v2.u32 [%x], "
                     "{%r4, %r5};"),
              bits)
              .fault == FaultKind::none);
    const uint32_t a = 0x0FF00F0F, b = 0x333333CC;
    CHECK(bits ==
          std::vector<uint32_t>(64, 5 + 4 * static_cast<uint32_t>(std::popcount(with_and ? a & b : a ^ b))));
  }
}

TEST_CASE("matrices move between memory and registers") {
  // Four 8 x 8 matrices of halves, one after the other, with elements numbered from 0.
  std::vector<uint32_t> memory(32 * 4 * 3 + 32);
  const std::string fill =
      "mov.u32 %r20, s; mad.lo.u32 %r21, %lane, 16, %r20; shl.b32 %r22, %lane, 3;\n"
      "{ .reg .b32 %n, %a; .reg .b16 %lo, %hi; .reg .pred %more; mov.u32 %n, 0; mov.u32 %a, %r21;\n"
      "L: cvt.u16.u32 %lo, %r22; add.u16 %hi, %lo, 1; mov.b32 %r23, {%lo, %hi}; st.shared.b32 [%a], %r23; "
      "add.u32 %a, %a, 4; "
      "add.u32 %r22, %r22, 2; add.u32 %n, %n, 1; setp.lt.u32 %more, %n, 4; @%more bra L; }\nbar.warp.sync "
      "-1;\n";
  CHECK(run(kernel(fill + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%r21];\n"
                          "ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%r4, %r5}, [%r21];\n"
                          "movmatrix.sync.aligned.m8n8.trans.b16 %r6, %r0;\n"
                          "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r21], {%r0}; bar.warp.sync -1;\n"
                          "mad.lo.u32 %r8, %lane, 4, %r20; ld.shared.b32 %r7, [%r8];\n"
                          "mad.wide.u32 %x, %lane, 32, %p; st.global.v4.u32 [%x], {%r0, %r1, %r2, %r3}; "
                          "st.global.v4.u32 "
                          "[%x+16], {%r4, %r5, %r6, %r7};",
                   ".shared .align 16 .b8 s[512];"),
            memory)
            .fault == FaultKind::none);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t row = lane / 4, column = lane % 4 * 2;
    const uint32_t plain = (row * 8 + column) | (row * 8 + column + 1) << 16;
    const uint32_t turned = (column * 8 + row) | ((column + 1) * 8 + row) << 16;
    const uint32_t* got = &memory[lane * 8];
    for (uint32_t n = 0; n < 4; ++n) CHECK(got[n] == plain + n * 0x00400040);
    CHECK(got[4] == turned);
    CHECK(got[5] == turned + 0x00400040);
    CHECK(got[6] == turned);
    CHECK(got[7] == turned);  // stmatrix.trans stored rows again
  }
  // A row beyond shared memory, or misaligned.
  for (const char* address : {"mov.u32 %r0, 4096;", "mov.u32 %r0, s; add.u32 %r0, %r0, 8;"}) {
    const GridResult result =
        run(kernel(std::string(address) + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r0];",
                   ".shared .align 16 .b8 s[512];"),
            memory);
    CHECK(result.fault != FaultKind::none);
  }
}

TEST_CASE("wmma loads, multiplies and stores") {
  // d = a * b + c of 16 x 16 elements, a and b in bytes, c and d in words: a row-major, b column-major.
  std::vector<uint32_t> memory(64 + 64 + 256 + 256);
  auto* bytes = reinterpret_cast<int8_t*>(memory.data());
  for (uint32_t x = 0; x < 16; ++x)
    for (uint32_t y = 0; y < 16; ++y) {
      bytes[x * 16 + y] = static_cast<int8_t>(number(x, y, 1));
      bytes[256 + y * 16 + x] = static_cast<int8_t>(number(x, y, 2));
      memory[128 + x * 16 + y] = integer_bits(number(x, y, 3));
    }
  CHECK(run(kernel("wmma.load.a.sync.aligned.row.m16n16k16.global.s8 {%r0, %r1}, [%p], 16;\n"
                   "wmma.load.b.sync.aligned.col.m16n16k16.global.s8 {%r2, %r3}, [%p+256];\n"
                   "wmma.load.c.sync.aligned.row.m16n16k16.global.s32 " +
                   registers(8, 8) +
                   ", [%p+512], 16;\n"
                   "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32 " +
                   registers(16, 8) + ", {%r0, %r1}, {%r2, %r3}, " + registers(8, 8) +
                   ";\n"
                   "wmma.store.d.sync.aligned.col.m16n16k16.global.s32 [%p+1536], " +
                   registers(16, 8) + ", 16;"),
            memory)
            .fault == FaultKind::none);
  for (uint32_t x = 0; x < 16; ++x)
    for (uint32_t y = 0; y < 16; ++y) {
      int sum = number(x, y, 3);
      for (uint32_t k = 0; k < 16; ++k) sum += number(x, k, 1) * number(k, y, 2);
      CHECK(memory[384 + y * 16 + x] == integer_bits(sum));
    }
  CHECK(run(kernel("mov.u64 %x, 64; wmma.load.a.sync.aligned.row.m16n16k16.s8 {%r0, %r1}, [%x], 16;"), memory)
            .fault == FaultKind::illegal_address);
}

TEST_CASE("matrix products take zeros for missing lanes and run separately for diverged lanes") {
  std::vector<uint32_t> memory(64);
  const std::string ones = "mov.b32 %r0, 0x3C003C00; mov.b32 %r1, 0;\n";
  const std::string product =
      "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r2, %r3}, {%r0, %r0, %r0, %r0}, {%r0, %r0}, {%r1, "
      "%r1};\n";
  CHECK(run(kernel(ones + "setp.gt.u32 %q0, %lane, 15; @%q0 exit;\n" + product +
                   "mad.wide.u32 %x, %lane, 8, %p; st.global.v2.u32 [%x], {%r2, %r3};"),
            memory)
            .fault == FaultKind::none);
  CHECK(memory[0] == 0x4C004C00);  // 16
  CHECK(memory[40] == 0);
  // Half of the warp executes another product: undefined results, but no fault.
  CHECK(run(kernel(ones + "setp.gt.u32 %q0, %lane, 15; @%q0 bra B;\n" + product +
                   "bra C;\nB: mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r2, %r3}, {%r0, %r0}, "
                   "{%r0}, {%r1, %r1};\nC:"),
            memory)
            .fault == FaultKind::none);
}

TEST_CASE("blocks of a cluster access each other's shared memory") {
  std::vector<uint32_t> memory(8 * 8);
  const std::string body =
      "mov.u32 %r0, %cluster_ctarank; mov.u32 %r1, %ctaid.x; add.u32 %r2, %r1, 100; setp.eq.u32 %q0, %lane, "
      "0; @%q0 "
      "st.shared.u32 [v], %r2;\nbarrier.cluster.arrive.release.aligned; "
      "barrier.cluster.wait.acquire.aligned;\n"
      "xor.b32 %r3, %r0, 3; mov.u32 %r4, v; mapa.shared::cluster.u32 %r5, %r4, %r3; ld.shared::cluster.u32 "
      "%r6, [%r5];\n"
      "mov.u64 %x, v; cvta.shared.u64 %x, %x; mapa.u64 %y, %x, %r3; ld.u32 %r7, [%y]; getctarank.u64 %r8, "
      "%y;\n"
      "getctarank.shared::cluster.u32 %r9, %r5; cvta.shared::cluster.u64 %x, %r5; sub.u64 %x, %x, %y; "
      "cvt.u32.u64 %r10, %x; "
      "isspacep.shared::cluster %q1, %y; isspacep.shared::cta %q2, %y; selp.u32 %r11, 1, 0, %q1; selp.u32 "
      "%r12, 2, 0, %q2; "
      "add.u32 %r11, %r11, %r12;\nmov.u32 %r13, 1; @%q0 atom.shared::cluster.add.u32 %r14, [%r5+4], %r13;\n"
      "barrier.cluster.arrive; barrier.cluster.wait; ld.shared.u32 %r14, [v+4]; mov.u32 %r15, "
      "%cluster_nctarank; "
      "mad.lo.u32 %r10, %r15, 16, %r10;\n"
      "mad.wide.u32 %x, %r1, 32, %p; @%q0 st.global.v4.u32 [%x], {%r0, %r6, %r7, %r8}; @%q0 st.global.v4.u32 "
      "[%x+16], {%r9, "
      "%r10, %r11, %r14};";
  CHECK(run(kernel(body, ".shared .align 8 .b8 v[8];"), memory, {8, 64, 4}).fault == FaultKind::none);
  for (uint32_t block = 0; block < 8; ++block) {
    const uint32_t rank = block % 4, other = block / 4 * 4 + (rank ^ 3);
    const uint32_t* got = &memory[block * 8];
    CHECK(std::vector<uint32_t>(got, got + 7) ==
          std::vector<uint32_t>{rank, 100 + other, 100 + other, rank ^ 3, rank ^ 3, 64, 1});
    CHECK(got[7] >= 1);
  }
  // A block that is not in a cluster is a cluster of one; higher ranks do not exist.
  CHECK(run(kernel("barrier.cluster.arrive; barrier.cluster.wait;"), memory, {3, 96}).fault ==
        FaultKind::none);
  CHECK(run(kernel("mov.u32 %r0, v; mapa.shared::cluster.u32 %r1, %r0, 5; ld.shared::cluster.u32 %r2, [%r1]; "
                   "st.global.u32 "
                   "[%p], %r2;",
                   ".shared .b32 v;"),
            memory, {2, 32, 2})
            .fault == FaultKind::illegal_address);
  // A thread that never reaches the cluster barrier.
  CHECK(run(kernel("setp.eq.u32 %q0, %lane, 0; @%q0 bra B; barrier.cluster.arrive; barrier.cluster.wait; bra "
                   "C;\nB: bar.sync 0;\nC:"),
            memory, {2, 32, 2})
            .fault == FaultKind::deadlock);
  // Exited threads count as arrived, also in other blocks.
  CHECK(run(kernel("setp.eq.u32 %q0, %cluster_ctarank, 0; @%q0 exit; barrier.cluster.arrive; "
                   "barrier.cluster.wait;"),
            memory, {4, 64, 2})
            .fault == FaultKind::none);
}
