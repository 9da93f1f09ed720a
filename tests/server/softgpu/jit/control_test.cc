// Tests branches, calls, special registers, linking, and loops that wait for other threads.
#include "tests/server/softgpu/jit/instruction.h"
#include "tests/support/catch.h"

using namespace gpupool::softgpu;

namespace {

const std::string kHead = ".version 8.0\n.target sm_75\n.address_size 64\n";

// Wraps the body into a kernel that writes %r0 to out[linear thread of the block].
std::string kernel(const std::string& body, const std::string& before = "") {
  return kHead + before +
         ".visible .entry k(.param .u64 out, .param .u32 n) { .reg .b64 %o, %x, %d<8>; .reg .b32 %r<16>; "
         ".reg .pred %p, %q; .reg .b16 %h; .reg .f32 %f;\n"
         "ld.param.u64 %o, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %x, %r1, 4; add.s64 %o, %o, %x; "
         "ld.param.u32 %r2, [n]; mov.u32 %r0, 0;\n" +
         body + "\nSTORE: st.global.u32 [%o], %r0; ret; }";
}

std::vector<uint32_t> results(const std::string& text, uint32_t n = 0, uint32_t threads = 4) {
  Loaded loaded(text);
  std::vector<uint32_t> first;
  for (bool by_thread : {false, true}) {
    auto* out = device_array(std::vector<uint32_t>(threads));
    FakeGrid grid;
    grid.block[0] = threads;
    grid.by_thread = by_thread;
    CHECK(loaded.run("k", grid, out, n).fault == FaultKind::none);
    std::vector<uint32_t> now(out, out + threads);
    if (by_thread) CHECK(now == first);
    first = now;
  }
  return first;
}
using Words = std::vector<uint32_t>;

}  // namespace

TEST_CASE("loops, predication and branch tables") {
  CHECK(results(kernel("mov.u32 %r3, 0; L: setp.ge.u32 %p, %r3, %r1; @%p bra STORE; add.u32 %r0, %r0, 10; "
                       "add.u32 %r3, %r3, 1; bra.uni L;")) == Words{0, 10, 20, 30});
  CHECK(results(kernel("setp.eq.u32 %p, %r1, 2; @%p mov.u32 %r0, 5; @!%p mov.u32 %r0, 6;")) ==
        Words{6, 6, 5, 6});
  CHECK(results(kernel("T: .branchtargets A, B, STORE; brx.idx.uni %r1, T2; T2: .branchtargets A, B, STORE, "
                       "B; A: mov.u32 %r0, 1; bra STORE; B: mov.u32 %r0, 2;")) == Words{1, 2, 0, 2});
  CHECK(results(kernel("setp.gt.u32 %p, %r1, 1; @%p exit; mov.u32 %r0, 9;")) == Words{9, 9, 0, 0});
  CHECK(results(kernel("setp.gt.u32 %p, %r1, 1; { .reg .u32 %r0; mov.u32 %r0, 77; @%p bra L; mov.u32 %r0, "
                       "78; L: } add.u32 %r0, %r0, 1; { L: bra M; M: }")) == Words{1, 1, 1, 1});
}

TEST_CASE("an index beyond a branch table is an illegal instruction") {
  Loaded loaded(kernel("T: .branchtargets A, STORE; brx.idx %r2, T; A: mov.u32 %r0, 1;"));
  auto* out = device_array(Words{0});
  CHECK(loaded.run("k", {}, out, 2u).fault == FaultKind::illegal_instruction);
  CHECK(loaded.run("k", {}, out, ~0u).fault == FaultKind::illegal_instruction);
  CHECK(loaded.run("k", {}, out, 0u).fault == FaultKind::none);
}

TEST_CASE("functions: values, structs, recursion and pointers") {
  const std::string functions =
      ".func (.param .b32 r) fact(.param .b32 n) { .reg .b32 %r<4>; .reg .pred %p; ld.param.u32 %r0, [n]; "
      "setp.lt.u32 %p, %r0, 2; @%p bra ONE; sub.u32 %r1, %r0, 1;\n"
      "{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), fact, (a); ld.param.b32 %r2, "
      "[b]; } mul.lo.u32 %r0, %r0, %r2; st.param.b32 [r], %r0; ret; ONE: st.param.b32 [r], 1; ret; }\n"
      ".func (.param .align 8 .b8 r[16]) pair(.param .align 8 .b8 s[16]) { .reg .b64 %d<3>; ld.param.u64 "
      "%d0, [s]; ld.param.u64 %d1, [s+8]; st.param.u64 [r], %d1; st.param.u64 [r+8], %d0; ret; }\n"
      ".func (.reg .u32 r) twice(.reg .u32 x) { add.u32 r, x, x; ret; }\n"
      ".func leave() { exit; }\n";
  CHECK(results(kernel("{ .param .b32 a; .param .b32 b; add.u32 %r3, %r1, 3; st.param.b32 [a], %r3; call "
                       "(b), fact, (a); ld.param.b32 %r0, [b]; }",
                       functions)) == Words{6, 24, 120, 720});
  CHECK(results(kernel("{ .param .align 8 .b8 a[16]; .param .align 8 .b8 b[16]; cvt.u64.u32 %d0, %r1; "
                       "st.param.u64 [a], %d0; st.param.u64 [a+8], 100; call (b), pair, (a); ld.param.u64 "
                       "%d1, [b]; ld.param.u64 %d2, [b+8]; add.u64 %d3, %d1, %d2; cvt.u32.u64 %r0, %d3; }",
                       functions)) == Words{100, 101, 102, 103});
  CHECK(results(kernel("call (%r0), twice, (%r1);", functions)) == Words{0, 2, 4, 6});
  CHECK(results(kernel("mov.u64 %d0, fact; mov.u64 %d1, twice2; setp.eq.u32 %p, %r1, 0; selp.b64 %d2, %d1, "
                       "%d0, %p; { .param .b32 a; .param .b32 b; st.param.b32 [a], 4; P: .callprototype "
                       "(.param .b32 _) _ (.param .b32 _); call (b), %d2, (a), P; ld.param.b32 %r0, [b]; }",
                       functions + ".func (.param .b32 r) twice2(.param .b32 n) { .reg .b32 %r; ld.param.b32 "
                                   "%r, [n]; shl.b32 %r, %r, 1; st.param.b32 [r], %r; ret; }\n")) ==
        Words{8, 24, 24, 24});
}

TEST_CASE("calls through invalid function pointers fault") {
  Loaded loaded(
      kHead +
      ".func f(.param .align 4 .b8 s[64]) { .reg .b32 %r; ld.param.b32 %r, [s+60]; ret; }\n"
      ".func g(.param .align 4 .b8 s[4]) { ret; }\n"
      ".visible .global .u64 pointers[2] = {f, g};\n"
      ".visible .entry k(.param .u64 target) { .reg .b64 %d<2>; .param .align 4 .b8 a[4]; .reg .b32 %r; "
      "ld.param.u64 %d0, [target]; P: .callprototype _ (.param .align 4 .b8 _[4]); call %d0, (a), P; ret; }");
  uint64_t f = 0, g = 0;
  const auto* pointers =
      reinterpret_cast<const uint64_t*>(loaded.data() + loaded.program().find_global("pointers")->offset);
  f = pointers[0];
  g = pointers[1];
  CHECK(loaded.run("k", {}, g).fault == FaultKind::none);
  // f takes a larger struct than the caller passes; the others are not function addresses.
  for (uint64_t bad : {f, uint64_t{0}, g + 1, g + 16, g - 3 * 16, ~uint64_t{0}, kRangeBase})
    CHECK(loaded.run("k", {}, bad).fault == FaultKind::invalid_pc);
}

TEST_CASE("special registers") {
  const char* names[] = {"%tid.x",           "%tid.y",       "%tid.z",
                         "%ntid.x",          "%ntid.y",      "%ntid.z",
                         "%ctaid.x",         "%ctaid.y",     "%nctaid.x",
                         "%laneid",          "%warpid",      "%nwarpid",
                         "%lanemask_eq",     "%lanemask_lt", "%lanemask_le",
                         "%lanemask_gt",     "%lanemask_ge", "%dynamic_smem_size",
                         "%total_smem_size", "WARP_SZ",      "%globaltimer_hi",
                         "%globaltimer_lo"};
  // Thread (3, 1, 1) of a block of (5, 2, 4), the 18th thread; block (1, 1) of a grid of (2, 2).
  const Words expected = {3,
                          1,
                          1,
                          5,
                          2,
                          4,
                          1,
                          1,
                          2,
                          18,
                          0,
                          2,
                          1u << 18,
                          (1u << 18) - 1,
                          (1u << 19) - 1,
                          ~0u << 19,
                          ~0u << 18,
                          40,
                          104,
                          32,
                          0x11223344,
                          0x55667788};
  // The same inside a function, where they are read from memory.
  for (bool in_function : {false, true}) {
    std::string reads;
    for (size_t i = 0; i < std::size(names); ++i)
      reads += std::string("mov.u32 %r, ") + names[i] + "; st.global.u32 [%o+" + std::to_string(4 * i) +
               "], %r;\n";
    std::string function =
        ".func f(.param .b64 p) { .reg .b64 %o; .reg .b32 %r; ld.param.u64 %o, [p]; " + reads + " ret; }\n";
    std::string body = in_function ? "{ .param .b64 a; st.param.b64 [a], %o; call f, (a); }" : reads;
    Loaded loaded(kHead + ".extern .shared .align 4 .b8 s[];\n.shared .b32 fixed[16];\n" +
                  (in_function ? function : "") +
                  ".visible .entry k(.param .u64 out) { .reg .b64 %o, %g; .reg .b32 %r, %x<9>; .reg .pred "
                  "%p<5>; ld.param.u64 %o, [out]; mov.u64 %g, %gridid; st.global.u64 [%o+96], %g;\n"
                  "mov.u32 %x0, s; mov.u32 %x0, fixed; mov.u32 %x1, %tid.x; mov.u32 %x2, %tid.y; mov.u32 "
                  "%x3, %tid.z; mov.u32 %x4, %ctaid.x; mov.u32 %x5, %ctaid.y;\n"
                  "setp.eq.u32 %p0, %x1, 3; setp.eq.and.u32 %p0, %x2, 1, %p0; setp.eq.and.u32 %p0, %x3, 1, "
                  "%p0; setp.eq.and.u32 %p0, %x4, 1, %p0; setp.eq.and.u32 %p0, %x5, 1, %p0; @!%p0 exit;\n" +
                  body + " ret; }");
    for (bool by_thread : {false, true}) {
      auto* out = device_array(Words(32));
      FakeGrid grid{{2, 2, 1}, {5, 2, 4}, 40, by_thread};
      CHECK(loaded.run("k", grid, out).fault == FaultKind::none);
      for (size_t i = 0; i < expected.size(); ++i) {
        INFO(names[i]);
        CHECK(out[i] == expected[i]);
      }
      CHECK(out[24] == 77);
    }
  }
}

TEST_CASE("links weak functions and local names and common variables of several files") {
  const std::string a = kHead +
                        ".extern .func (.param .b32 r) answer();\n.visible .global .u32 counter = "
                        "5;\n.global .u32 hidden = 1;\n.weak .func (.param .b32 r) choice() { st.param.b32 "
                        "[r], 1; ret; }\n.common .global .u32 shared_name;\n"
                        ".visible .entry k(.param .u64 out) { .reg .b64 %o; .reg .b32 %r<4>; ld.param.u64 "
                        "%o, [out]; { .param .b32 b; call (b), answer, (); ld.param.b32 %r0, [b]; } { .param "
                        ".b32 b; call (b), choice; ld.param.b32 %r1, [b]; } ld.global.u32 %r2, [hidden]; "
                        "st.global.v2.u32 [%o], {%r0, %r1}; st.global.u32 [%o+8], %r2; ret; }";
  const std::string b =
      kHead +
      ".extern .global .u32 counter;\n.global .u32 hidden = 2;\n.common .global .u32 shared_name;\n.weak "
      ".func (.param .b32 r) choice() { st.param.b32 [r], 2; ret; }\n"
      ".visible .func (.param .b32 r) answer() { .reg .b32 %r<4>; ld.global.u32 %r0, [counter]; "
      "ld.global.u32 %r1, [hidden]; add.u32 %r0, %r0, %r1; st.param.b32 [r], %r0; ret; }";
  Loaded loaded({a, b});
  auto* out = device_array(Words{0, 0, 0});
  CHECK(loaded.run("k", {}, out).fault == FaultKind::none);
  CHECK(Words(out, out + 3) == Words{7, 1, 1});
  std::string_view alone[] = {a};
  auto result = compile(alone, {});
  REQUIRE(std::holds_alternative<CompileError>(result));
  CHECK(std::get<CompileError>(result).code == CompileErrorCode::unresolved_symbol);
  CHECK(std::get<CompileError>(result).message.find("answer") != std::string::npos);
}

TEST_CASE("a function without a result is called where its declaration in another file promises one") {
  const std::string caller = kernel(
      "{ .param .b64 a; .param .b32 r; st.param.b64 [a], %o; call (r), quiet, (a); ld.param.b32 %r3, [r]; } "
      "ld.global.u32 %r0, [%o]; "
      "add.u32 %r0, %r0, 1;",
      ".extern .func (.param .b32 r) quiet(.param .b64 a);\n");
  const std::string callee = kHead +
                             ".visible .func quiet(.param .b64 a) { .reg .b64 %o; ld.param.u64 %o, [a]; "
                             "st.global.u32 [%o], 41; ret; }";
  Loaded loaded({caller, callee});
  auto* out = device_array(Words{0});
  CHECK(loaded.run("k", {}, out, 0u).fault == FaultKind::none);
  CHECK(out[0] == 42);
}

TEST_CASE("printf, assert, malloc and trap reach the runtime") {
  const std::string externs =
      ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n.extern .func "
      "__assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n"
      ".extern .func (.param .b64 r) malloc(.param .b64 a);\n.global .align 1 .b8 $str[4] = {104, 105, 33, "
      "0};\n";
  Loaded loaded(kernel(
      "{ .param .b64 a; .param .b64 b; .param .b32 c; mov.u64 %d0, $str; cvta.global.u64 %d1, %d0; "
      "st.param.b64 [a], %d1; st.param.b64 [b], 0; call (c), vprintf, (a, b); ld.param.b32 %r0, [c]; }\n"
      "{ .param .b64 a; .param .b64 b; st.param.b64 [a], 64; call (b), malloc, (a); ld.param.b64 %d2, [b]; "
      "st.u32 [%d2], 3; ld.u32 %r3, [%d2]; add.u32 %r0, %r0, %r3; }\n"
      "setp.eq.u32 %p, %r2, 1; @%p trap; setp.ne.u32 %p, %r2, 2; @%p bra STORE;\n"
      "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; st.param.b64 [a], %d1; "
      "st.param.b64 [b], %d1; st.param.b32 [c], 1; st.param.b64 [d], %d1; st.param.b64 [e], 1; call "
      "__assertfail, (a, b, c, d, e); }",
      externs));
  auto* out = device_array(Words{0});
  CHECK(loaded.run("k", {}, out, 0u).fault == FaultKind::none);
  CHECK(out[0] == 10);
  CHECK(printed() == "hi!");
  CHECK(loaded.run("k", {}, out, 1u).fault == FaultKind::trap);
  CHECK(loaded.run("k", {}, out, 2u).fault == FaultKind::assertion);
  printed();
}

TEST_CASE("only loops that may wait for another thread need fibers") {
  auto synchronises = [](const std::string& body) {
    Loaded loaded(kernel(body));
    return loaded.program().find_kernel("k")->synchronises;
  };
  CHECK_FALSE(synchronises("L: atom.global.add.u32 %r3, [%o], 1; setp.lt.u32 %p, %r3, 100; @%p bra L;"));
  // A maximum by compare-and-swap, whose expected value is the last one read.
  CHECK_FALSE(
      synchronises("ld.global.u32 %r3, [%o]; L: mov.u32 %r4, %r3; max.u32 %r5, %r4, 7; atom.global.cas.b32 "
                   "%r3, [%o], %r4, %r5; setp.ne.u32 %p, %r3, %r4; @%p bra L;"));
  CHECK_FALSE(synchronises("ld.volatile.global.u32 %r3, [%o];"));
  CHECK_FALSE(synchronises(
      "atom.global.cas.b32 %r3, [%o], 0, 1; L: add.u32 %r4, %r4, 1; setp.lt.u32 %p, %r4, 100; @%p bra L;"));
  CHECK(synchronises("L: atom.global.cas.b32 %r3, [%o], 0, 1; setp.ne.u32 %p, %r3, 0; @%p bra L;"));
  CHECK(
      synchronises("mov.u32 %r4, 0; mov.u32 %r5, 1; L: atom.global.cas.b32 %r3, [%o], %r4, %r5; setp.ne.u32 "
                   "%p, %r3, 0; @%p bra L;"));
  CHECK(synchronises("L: atom.global.exch.b32 %r3, [%o], 1; setp.ne.u32 %p, %r3, 0; @%p bra L;"));
  CHECK(synchronises("L: ld.volatile.global.u32 %r3, [%o]; setp.ne.u32 %p, %r3, 0; @%p bra L;"));
  CHECK(synchronises("L: ld.acquire.gpu.global.u32 %r3, [%o]; setp.ne.u32 %p, %r3, 0; @%p bra L;"));
  CHECK(synchronises("L: atom.global.add.u32 %r3, [%o], 0; setp.ne.u32 %p, %r3, 0; @%p bra L;"));
  CHECK(synchronises("bar.sync 0;"));
  CHECK(synchronises("shfl.sync.idx.b32 %r0, %r1, 0, 31, -1;"));
}

TEST_CASE("a waiting loop yields in each iteration") {
  Loaded loaded(kernel("L: ld.volatile.global.u32 %r3, [%o]; setp.ne.u32 %p, %r3, 0; @%p bra L;"));
  auto* out = device_array(Words{1});
  CHECK(loaded.run("k", {}, out, 0u).yields > 1000);  // until the fake executor gives up
  out[0] = 0;
  CHECK(loaded.run("k", {}, out, 0u).yields == 0);
}

TEST_CASE("volatile and vector forms, packing and unpacking") {
  CHECK(results(kernel(
            "mov.b64 %d0, {%r1, 7}; mov.b64 {%r3, %r4}, %d0; shl.b32 %r3, %r3, 4; or.b32 %r0, %r3, %r4;")) ==
        Words{7, 0x17, 0x27, 0x37});
  CHECK(results(kernel("mov.b32 {%h, _}, %r1; mov.b32 %r0, {5, %h};")) ==
        Words{5, 0x10005, 0x20005, 0x30005});
  CHECK(results(kernel("mov.b32 %f, %r1; add.f32 %f, %f, 0f3F800000; cvt.rzi.u32.f32 %r0, %f;")) ==
        Words{1, 1, 1, 1});
}
