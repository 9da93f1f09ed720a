// Tests loads, stores, atomics, address spaces, the data segment, and accesses that must fault.
#include "tests/server/softgpu/jit/instruction.h"
#include "tests/support/catch.h"

using namespace gpupool::softgpu;

namespace {

const std::string kHead = ".version 8.0\n.target sm_75\n.address_size 64\n";

FakeResult run_address(const std::string& access, uint64_t address) {
  Loaded loaded(kHead +
                ".visible .entry k(.param .u64 p) { .reg .b64 %a; .reg .b32 %r<4>; .reg .b16 %h; "
                "ld.param.u64 %a, [p]; " +
                access + " ret; }");
  return loaded.run("k", {}, address);
}

}  // namespace

TEST_CASE("only accesses outside the range or misaligned fault") {
  uint64_t inside = device_bytes(64);
  for (const char* access :
       {"ld.global.u32 %r0, [%a]; st.global.u32 [%a], %r0;", "ld.u32 %r0, [%a]; st.u32 [%a], %r0;",
        "ld.volatile.u32 %r0, [%a]; st.u32 [%a], %r0;", "atom.global.add.u32 %r0, [%a], 1;",
        "red.add.u32 [%a], 1;", "st.global.v2.u16 [%a], {%h, %h};"}) {
    INFO(access);
    CHECK(run_address(access, inside).fault == FaultKind::none);
    for (uint64_t address : {uint64_t{0}, uint64_t{4}, kRangeBase - 4, kRangeBase + kRangeSize,
                             uint64_t{1} << 63, uint64_t{0} - 4}) {
      FakeResult result = run_address(access, address);
      CHECK(result.fault == FaultKind::illegal_address);
      CHECK(result.address == address);
    }
    CHECK(run_address(access, inside + 2).fault == FaultKind::misaligned_address);
    CHECK(run_address(access, inside + 1).fault == FaultKind::misaligned_address);
  }
  CHECK(run_address("ld.u8 %h, [%a]; st.u8 [%a], %h;", inside + 1).fault == FaultKind::none);
  CHECK(run_address("ld.v4.u32 {%r0, %r1, %r2, %r3}, [%a]; st.u32 [%a], %r0;", inside + 8).fault ==
        FaultKind::misaligned_address);
  CHECK(run_address("ld.u32 %r0, [%a+-8]; st.u32 [%a], %r0;", kRangeBase + 4).fault ==
        FaultKind::illegal_address);
}

TEST_CASE("shared memory has its own bounds") {
  Loaded loaded(
      kHead +
      ".extern .shared .align 4 .b8 dyn[];\n.shared .align 8 .b8 fixed[64];\n"
      ".visible .entry k(.param .u32 offset, .param .u64 out) { .reg .b32 %r<4>; .reg .b64 %d<4>; "
      "ld.param.u32 %r0, [offset];\n"
      "mov.u32 %r1, dyn; add.u32 %r1, %r1, %r0; st.shared.u32 [%r1], 42; ld.shared.u32 %r2, [%r1];\n"
      "st.shared.v2.u32 [fixed+8], {%r2, %r2}; ld.shared.u64 %d1, [fixed+8];\n"
      "cvt.u64.u32 %d2, %r1; cvta.shared.u64 %d2, %d2; ld.u32 %r3, [%d2]; cvta.to.shared.u64 %d2, %d2; "
      "ld.shared.u32 %r2, [%d2]; add.u32 %r3, %r3, %r2;\n"
      "ld.param.u64 %d0, [out]; st.global.u32 [%d0], %r3; st.global.u64 [%d0+8], %d1; ret; }");
  auto* out = device_array(std::vector<uint64_t>(2));
  FakeGrid grid;
  grid.dynamic_shared = 100;
  CHECK(loaded.program().find_kernel("k")->static_shared_bytes == 64);
  CHECK(loaded.run("k", grid, uint32_t{96}, out).fault == FaultKind::none);
  CHECK(out[0] == 84);
  CHECK(out[1] == (42ull << 32 | 42));
  CHECK(loaded.run("k", grid, uint32_t{100}, out).fault == FaultKind::illegal_address);
  CHECK(loaded.run("k", grid, uint32_t{94}, out).fault == FaultKind::misaligned_address);
  CHECK(loaded.run("k", grid, uint32_t(-68), out).fault == FaultKind::illegal_address);
  grid.dynamic_shared = 0;
  CHECK(loaded.run("k", grid, uint32_t{0}, out).fault == FaultKind::illegal_address);
}

TEST_CASE("local arrays stay inside their bounds") {
  Loaded loaded(kHead +
                ".visible .entry k(.param .u64 index, .param .u64 out) { .local .align 8 .b8 depot[32]; .reg "
                ".b64 %SP, %SPL, %d<8>; .reg .b32 %r<4>;\n"
                "mov.u64 %SPL, depot; cvta.local.u64 %SP, %SPL; add.u64 %d0, %SP, 8; add.u64 %d1, %SPL, 8; "
                "st.local.u32 [%d1], 5; st.u32 [%d0+4], 6;\n"
                "ld.param.u64 %d2, [index]; shl.b64 %d3, %d2, 2; add.s64 %d4, %d1, %d3; ld.local.u32 %r0, "
                "[%d4]; ld.param.u64 %d5, [out]; st.global.u32 [%d5], %r0;\n"
                "st.global.u64 [%d5+8], %d0; ld.global.u64 %d6, [%d5+8]; ld.u32 %r1, [%d6]; st.global.u32 "
                "[%d5+4], %r1; ret; }");
  auto* out = device_array(std::vector<uint32_t>(4));
  CHECK(loaded.program().find_kernel("k")->local_bytes == 32);
  CHECK(loaded.run("k", {}, uint64_t{0}, out).fault == FaultKind::none);
  CHECK(out[0] == 5);
  CHECK(out[1] == 5);
  CHECK(loaded.run("k", {}, uint64_t{1}, out).fault == FaultKind::none);
  CHECK(out[0] == 6);
  CHECK(loaded.run("k", {}, uint64_t{6}, out).fault == FaultKind::illegal_address);
  CHECK(loaded.run("k", {}, uint64_t(-3), out).fault == FaultKind::illegal_address);
  CHECK(loaded.run("k", {}, uint64_t{1} << 60, out).fault == FaultKind::illegal_address);
}

TEST_CASE("atomic operations return the old value") {
  struct Row {
    std::string op;
    uint32_t start, b, c, expected;
  };
  const Row rows[] = {{"add.u32", 5, 7, 0, 12},
                      {"min.s32", 5, uint32_t(-7), 0, uint32_t(-7)},
                      {"min.u32", 5, uint32_t(-7), 0, 5},
                      {"max.s32", 5, uint32_t(-7), 0, 5},
                      {"max.u32", 5, uint32_t(-7), 0, uint32_t(-7)},
                      {"inc.u32", 5, 5, 0, 0},
                      {"inc.u32", 4, 5, 0, 5},
                      {"dec.u32", 0, 5, 0, 5},
                      {"dec.u32", 9, 5, 0, 5},
                      {"dec.u32", 3, 5, 0, 2},
                      {"and.b32", 12, 10, 0, 8},
                      {"or.b32", 12, 10, 0, 14},
                      {"xor.b32", 12, 10, 0, 6},
                      {"exch.b32", 12, 10, 0, 10},
                      {"cas.b32", 12, 12, 99, 99},
                      {"cas.b32", 12, 13, 99, 12},
                      {"add.f32", std::bit_cast<uint32_t>(1.5f), std::bit_cast<uint32_t>(2.0f), 0,
                       std::bit_cast<uint32_t>(3.5f)},
                      {"add.noftz.f16x2", 0x3C004000, 0x40003C00, 0, 0x42004200}};
  for (const Row& row : rows) {
    INFO(row.op);
    std::string c = row.op.substr(0, 3) == "cas" ? ", " + std::to_string(row.c) : "";
    for (std::string space : {".global", ""}) {
      Loaded loaded(kHead +
                    ".visible .entry k(.param .u64 p, .param .u32 b) { .reg .b64 %a; .reg .b32 %r<4>; "
                    "ld.param.u64 %a, [p]; ld.param.u32 %r1, [b];\n"
                    "atom" +
                    space + "." + row.op + " %r0, [%a], %r1" + c + "; st.global.u32 [%a+4], %r0; ret; }");
      auto* cell = device_array(std::vector<uint32_t>{row.start, 0});
      CHECK(loaded.run("k", {}, cell, row.b).fault == FaultKind::none);
      CHECK(cell[0] == row.expected);
      CHECK(cell[1] == row.start);
    }
  }
  auto sum = device_array(std::vector<double>{1.0});
  Loaded loaded(kHead +
                ".visible .entry k(.param .u64 p) { .reg .b64 %a; .reg .f64 %f; ld.param.u64 %a, [p]; "
                "atom.global.gpu.relaxed.add.f64 %f, [%a], 0d3FF0000000000000; "
                "red.relaxed.sys.global.add.f64 [%a], 0d4000000000000000; ret; }");
  FakeGrid grid;
  grid.block[0] = 10;
  loaded.run("k", grid, sum);
  CHECK(*sum == 31.0);
}

TEST_CASE("the data segment holds values and addresses") {
  Loaded loaded(
      {kHead +
       ".visible .global .align 4 .u32 numbers[4] = {1, 0x10, -1};\n.visible .const .align 4 .f32 real = "
       "0f3FC00000;\n"
       ".visible .global .f64 wide[2] = {1.25, 0d4000000000000000};\n"
       ".visible .global .u64 pointer = generic(numbers)+8;\n.visible .global .u64 functions[2] = {f, "
       "pointer};\n"
       ".visible .global .u8 bytes[3] = {0xFF(numbers), 0xFF00(numbers), 0xFF0000(numbers)};\n"
       ".visible .global .attribute(.managed) .align 8 .b8 shared_with_host[16];\n"
       ".func (.param .b32 r) f(.param .b32 x) { .reg .b32 %r; ld.param.u32 %r, [x]; mul.lo.u32 %r, %r, 3; "
       "st.param.b32 [r], %r; ret; }\n"
       ".visible .entry k(.param .u64 out) { .reg .b64 %d<4>; .reg .b32 %r<3>; ld.param.u64 %d0, [out]; "
       "ld.global.u64 %d1, [pointer]; ld.u32 %r0, [%d1]; st.global.u32 [%d0], %r0;\n"
       "ld.global.u64 %d2, [functions]; { .param .b32 a; .param .b32 b; st.param.b32 [a], 14; p : "
       ".callprototype (.param .b32 _) _ (.param .b32 _); call (b), %d2, (a), p; ld.param.b32 %r1, [b]; }\n"
       "st.global.u32 [%d0+4], %r1; ret; }"});
  const Program& program = loaded.program();
  auto at = [&](const char* name) {
    return reinterpret_cast<const std::byte*>(loaded.data() + program.find_global(name)->offset);
  };
  CHECK(std::memcmp(at("numbers"), std::array<uint32_t, 4>{1, 16, ~0u, 0}.data(), 16) == 0);
  CHECK(*reinterpret_cast<const float*>(at("real")) == 1.5f);
  CHECK(*reinterpret_cast<const double*>(at("wide")) == 1.25);
  auto numbers = reinterpret_cast<uint64_t>(at("numbers"));
  CHECK(*reinterpret_cast<const uint64_t*>(at("pointer")) == numbers + 8);
  for (int i = 0; i < 3; ++i) CHECK(static_cast<uint8_t>(at("bytes")[i]) == (numbers >> (8 * i) & 255));
  CHECK(program.find_global("real")->is_constant);
  CHECK(program.find_global("shared_with_host")->is_managed);
  CHECK(program.find_global("numbers")->size == 16);
  auto* out = device_array(std::vector<uint32_t>(2));
  CHECK(loaded.run("k", {}, out).fault == FaultKind::none);
  CHECK(out[0] == ~0u);
  CHECK(out[1] == 42);
}

TEST_CASE("parameters: structs, alignment and addresses of them") {
  Loaded loaded(kHead +
                ".visible .entry k(.param .u8 small, .param .align 8 .b8 block[24], .param .u64 out) { .reg "
                ".b64 %d<6>; .reg .b32 %r<4>; .reg .b16 %h;\n"
                "ld.param.u64 %d0, [out]; ld.param.u8 %h, [small]; cvt.u32.u16 %r0, %h; ld.param.u32 %r1, "
                "[block+20]; mov.b64 %d1, block; cvta.param.u64 %d2, %d1; ld.u32 %r2, [%d2+4];\n"
                "st.global.v2.u32 [%d0], {%r0, %r1}; st.global.u32 [%d0+8], %r2; ret; }");
  struct alignas(8) Block {
    uint32_t words[6];
  };
  const KernelInfo* kernel = loaded.program().find_kernel("k");
  REQUIRE(kernel->parameters.size() == 3);
  CHECK(kernel->parameters[1].offset == 8);
  CHECK(kernel->parameters[2].offset == 32);
  CHECK(kernel->parameter_bytes == 40);
  auto* out = device_array(std::vector<uint32_t>(4));
  CHECK(loaded.run("k", {}, uint8_t{200}, Block{{1, 2, 3, 4, 5, 6}}, out).fault == FaultKind::none);
  CHECK(out[0] == 200);
  CHECK(out[1] == 6);
  CHECK(out[2] == 2);
}

TEST_CASE("isspacep.param recognises exactly the bytes of a kernel's parameters") {
  Loaded loaded(
      kHead +
      ".visible .entry k(.param .align 8 .b8 block[8192], .param .u64 out) { .reg .b64 %d<6>; .reg .b32 "
      "%r<4>; "
      ".reg .pred %p<4>;\n"
      "ld.param.u64 %d0, [out]; mov.b64 %d1, block; cvta.param.u64 %d2, %d1; add.s64 %d3, %d2, 8199; "
      "add.s64 %d4, %d2, 8200;\n"
      "isspacep.param %p0, %d2; isspacep.param %p1, %d3; isspacep.param %p2, %d4;\n"
      "selp.u32 %r0, 1, 0, %p0; selp.u32 %r1, 1, 0, %p1; selp.u32 %r2, 1, 0, %p2;\n"
      "st.global.v2.u32 [%d0], {%r0, %r1}; st.global.u32 [%d0+8], %r2; ret; }");
  struct alignas(8) Block {
    uint32_t words[2048];
  };
  auto* out = device_array(std::vector<uint32_t>{7, 7, 7});
  CHECK(loaded.run("k", {}, Block{}, out).fault == FaultKind::none);
  CHECK(out[0] == 1);
  CHECK(out[1] == 1);  // the last byte, beyond 4 KiB
  CHECK(out[2] == 0);
}

TEST_CASE("asynchronous copies complete when they return") {
  Loaded loaded(kHead.substr(0, 13) + "\n.target sm_80\n.address_size 64\n" +
                ".shared .align 16 .b8 s[32];\n.visible .entry k(.param .u64 p, .param .u32 n) { .reg .b64 "
                "%a; .reg .b32 %r<6>; ld.param.u64 %a, [p]; ld.param.u32 %r5, [n]; mov.u32 %r0, s;\n"
                "cp.async.cg.shared.global [%r0], [%a], 16; cp.async.ca.shared.global [%r0+16], [%a], 8, "
                "%r5; cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all;\n"
                "ld.shared.u32 %r1, [s+12]; ld.shared.v2.u32 {%r2, %r3}, [s+16]; st.global.u32 [%a+16], %r1; "
                "st.global.v2.u32 [%a+24], {%r2, %r3}; ret; }");
  for (uint32_t n : {0u, 3u, 8u}) {
    auto* cells = device_array(std::vector<uint32_t>{0x01020304, 0x05060708, 3, 4, 0, 0, 0, 0});
    CHECK(loaded.run("k", {}, cells, n).fault == FaultKind::none);
    CHECK(cells[4] == 4);
    CHECK(cells[6] == (n == 0 ? 0 : n == 3 ? 0x020304 : 0x01020304));
    CHECK(cells[7] == (n == 8 ? 0x05060708 : 0));
  }
}

TEST_CASE("an mbarrier counts arrivals and bytes") {
  Loaded loaded(
      ".version 8.0\n.target sm_90\n.address_size 64\n"
      ".shared .align 8 .b64 bar;\n.shared .align 16 .b8 s[32];\n.visible .entry k(.param .u64 p) { .reg "
      ".b64 %a, %s<3>; .reg .b32 %r<8>; .reg .pred %p<6>; ld.param.u64 %a, [p]; mov.u32 %r0, bar; mov.u32 "
      "%r5, s;\n"
      "mbarrier.init.shared::cta.b64 [bar], 2; mbarrier.arrive.shared.b64 %s0, [bar]; "
      "mbarrier.test_wait.shared.b64 %p0, [bar], %s0; mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 "
      "%s1, [%r0], 32;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0; "
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%a], 32, [%r0];\n"
      "mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; mbarrier.test_wait.shared.b64 %p3, [bar], "
      "%s1; mbarrier.try_wait.parity.shared::cta.b64 %p4, [bar], 1; mbarrier.pending_count.b64 %r1, %s1;\n"
      "cp.async.bulk.global.shared::cta.bulk_group [%a+32], [s], 16; cp.async.bulk.commit_group; "
      "cp.async.bulk.wait_group 0;\n"
      "selp.u32 %r2, 1, 0, %p0; selp.u32 %r3, 2, 0, %p1; or.b32 %r2, %r2, %r3; selp.u32 %r3, 4, 0, %p2; "
      "or.b32 %r2, %r2, %r3; selp.u32 %r3, 8, 0, %p3; or.b32 %r2, %r2, %r3; selp.u32 %r3, 16, 0, %p4; or.b32 "
      "%r2, %r2, %r3;\n"
      "ld.shared.u32 %r4, [s+28]; st.global.v2.u32 [%a+56], {%r2, %r4}; st.global.u32 [%a+52], %r1; ret; }");
  auto* cells = device_array(std::vector<uint32_t>{1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(loaded.run("k", {}, cells).fault == FaultKind::none);
  CHECK(cells[14] == 12);  // complete only after the bytes have arrived
  CHECK(cells[15] == 8);
  CHECK(cells[11] == 4);
  CHECK(cells[13] == 1);
}
