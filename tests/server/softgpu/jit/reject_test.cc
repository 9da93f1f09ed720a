// Tests that unsupported and malformed PTX is rejected at compile time with a one-line reason and without a
// crash.
#include <chrono>
#include <thread>

#include "tests/server/softgpu/jit/fake_executor.h"
#include "tests/support/catch.h"

using namespace gpupool::softgpu;

namespace {

const std::string kHead = ".version 8.0\n.target sm_75\n.address_size 64\n";

std::string in_kernel(const std::string& body) {
  return kHead +
         ".shared .b32 s[4]; .global .b32 g[4];\n.func f(.param .b32 x) { ret; }\n.visible .entry k(.param "
         ".u64 p, .param .b32 n) { .reg .b64 %d<8>; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .f64 %e<8>; .reg "
         ".b16 %h<8>; .reg .pred %p<8>;\n" +
         body + "\nret; }";
}

}  // namespace

TEST_CASE("rejects PTX versions and targets beyond the device") {
  CHECK(compile_error_code(".version 10.0\n.target sm_75\n.address_size 64\n") ==
        CompileErrorCode::unsupported_ptx_version);
  CHECK(compile_error_code(".version 8.0\n.target sm_100\n.address_size 64\n") ==
        CompileErrorCode::unsupported_ptx_version);
  CHECK(compile_error(".version 9.0\n.target sm_90a\n.address_size 64\n") == "");
  CHECK(compile_error(".version 9.0\n.target sm_75, debug\n.address_size 64\n") == "");
  CHECK(compile_error(".version 8.0\n.target sm_90\n.address_size 64\n", {89}).find("8.9") !=
        std::string::npos);
  CHECK(compile_error(".version 9.0\n.target sm_120f\n.address_size 64\n", {120}) == "");
}

TEST_CASE("error messages name unsupported instructions") {
  for (std::string bad :
       {"frobnicate.u32 %r0, %r1;",
        "add.u32 %r0, %r1;",
        "add.u32 %r0, %r1, %r2, %r3;",
        "add.q32 %r0, %r1, %r2;",
        "add.u32.foo %r0, %r1, %r2;",
        "add.pred %p0, %p1, %p2;",
        "add.u32 %p0, %r1, %r2;",
        "add.u32 %r0, %p1, %r2;",
        "add.u32 5, %r1, %r2;",
        "add.u32 %r0, {%r1, %r2}, %r2;",
        "add.u32 %r0, [%r1], %r2;",
        "add.u32 %r0, nothing, %r2;",
        "add.u32 %r0, %nothing, %r2;",
        "add.b128 %r0, %r1, %r2;",
        "mul.u32 %r0, %r1, %r2;",
        "mul.wide.u64 %d0, %d1, %d2;",
        "shl.f32 %f0, %f1, 1;",
        "and.f32 %f0, %f1, %f2;",
        "mov.u32 %r0, s+;x",
        "mov.b32 {%h0, %h1, %h2}, %r0;",
        "mov.b64 {%r0, %r1}, {%r2, %r3};",
        "ld.u32 %r0, %d0;",
        "ld.u32 %r0, [f];",
        "ld.v3.u32 %r0, [%d0];",
        "ld.v2.u32 {%r0, %r1, %r2}, [%d0];",
        "ld.v8.u64 {%d0, %d1, %d2, %d3, %d4, %d5, %d6, %d7}, [%d0];",
        "ld.pred %p0, [%d0];",
        "ld.param.u32 %r0, [n+4];",
        "ld.param.u32 %r0, [n+-1];",
        "st.param.u32 [n], %r0;",
        "st.u32 [%d0];",
        "ld.param.u64 %d0, [q];",
        "atom.add.pred %p0, [%d0], %p1;",
        "atom.frob.u32 %r0, [%d0], %r1;",
        "atom.cas.b32 %r0, [%d0], %r1;",
        "red.exch.b32 [%d0], %r1;",
        "atom.add.u8 %r0, [%d0], 1;",
        "atom.and.f32 %f0, [%d0], %f1;",
        "cvt.u32.pred %r0, %p0;",
        "cvt.e4m3x2.f64 %h0, %e0, %e1;",
        "cvt.rp.tf32.f32 %r0, %f0;",
        "cvt.rs.f16x2.f64 %r0, %e0, %e1, %r1;",
        "add.u32 %r0, %r1.b0, %r2;",
        "add.s32 %r0, -%r1, %r2;",
        "vadd.u32.u32.u32 %r0, %r1.b4, %r2;",
        "mma.sync.aligned.m16n8k99.row.col.f32.f16.f16.f32 {%f0}, {%r0}, {%r0}, {%f0};",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0}, {%r0}, {%r0}, {%f0};",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0}, {%r0}, {%r0}, {%f0}, %r0, 0;",
        "wmma.load.a.sync.aligned.row.m16n16k16.s4 {%r0}, [%d0];",
        "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r0, %r1, %r2}, [%r3];",
        "atom.add.v4.u32 {%r0, %r1, %r2, %r3}, [%d0], {%r0, %r1, %r2, %r3};",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 32;",
        "setp.foo.u32 %p0, %r0, %r1;",
        "setp.num.u32 %p0, %r0, %r1;",
        "setp.lo.f32 %p0, %f0, %f1;",
        "setp.eq.pred %p0, %p1, %p2;",
        "selp.u32 %r0, %r1, %r2, %r3;",
        "bra nowhere;",
        "bra f;",
        "brx.idx %r0, f;",
        "call nowhere;",
        "call f;",
        "call f, (%r0, %r1);",
        "call (%r0, %r2), f, (%r1);",
        "call k, (%d0, %r0);",
        "call %d0, (%r0);",
        "bar.frob 0;",
        "bar.red.popc.u32 %r0, 1;",
        "barrier.cluster.frob;",
        "mapa.u16 %h0, %h1, %r0;",
        "shfl.sync.sideways.b32 %r0, %r1, 1, 31, -1;",
        "vote.sync.ballot.b32 %r0, %r1, -1;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0}, %d0, %d1;",
        "tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [t, {%f4, %f5}];",
        "lop3.b32 %r0, %r1, %r2, %r3, %r4;",
        "isspacep.moon %p0, %d0;",
        "div.rn.f16 %h0, %h1, %h2;",
        "sqrt.u32 %r0, %r1;",
        "@%r0 bra k;",
        "@%p0 @%p1 ret;",
        "fma.rn.u32 %r0, %r1, %r2, %r3;",
        "sin.approx.f64 %e0, %e1;",
        "dp4a.u64.u64 %d0, %d1, %d2, %d3;",
        "prmt.b64 %d0, %d1, %d2, %d3;",
        "neg.u32 %r0, %r1;",
        "cp.async.bulk.tensor.2d.shared::cluster.global [%r0], [%d0];",
        "min.NaN.u32 %r0, %r1, %r2;",
        "mov.v4.u32 %r0, %r1;"}) {
    std::string message = compile_error(in_kernel(bad));
    INFO(bad);
    CHECK(message != "");
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.find("line") != std::string::npos);
    // An error in a recognized instruction quotes it.
    if (bad.substr(0, 5) == "wgmma") {
      CHECK(message.find("kernel k") != std::string::npos);
      CHECK(message.find("compile for compute_80") != std::string::npos);
    }
    if (bad.substr(0, 4) == "frob") CHECK(message.find("'frobnicate.u32 %r0, %r1'") != std::string::npos);
  }
}

TEST_CASE("every error in a function names the function and the line") {
  const std::string head = ".version 8.0\n.target sm_75\n.address_size 64\n";  // three lines
  struct Row {
    std::string text, where;
  };
  for (const Row& row :
       {Row{".entry first() { ret; }\n.entry second() {\n  mov.u32 1 2;\n}", "(kernel second, line 6)"},
        Row{".entry first() { ret; }\n.entry second() {\n  frobnicate;\n}", "(kernel second, line 6)"},
        Row{".func helper() {\n  add.u32 1;\n}", "(function helper, line 5)"},
        Row{".entry k() {\n\n  call nowhere;\n}", "(kernel k, line 6)"},
        Row{".entry k()\n{\n  .local .b8 x[99999999];\n}", "(kernel k, line 6)"},
        Row{".entry k(\n  .param .b8 p[99999]) { ret; }", "(kernel k, line 5)"},
        Row{".shared .b8 x[999999];\n.entry k() { .reg .b32 %r; mov.u32 %r, x; ret; }", "(kernel k, line 5)"},
        Row{".func (.param .b32 a, .param .b32 b) f() { ret; }", "(function f, line 4)"}}) {
    INFO(row.text);
    CHECK(compile_error(head + row.text).find(row.where) != std::string::npos);
  }
}

TEST_CASE("rejects malformed PTX") {
  for (std::string bad :
       {"",
        "garbage",
        ".version 8.0 .target sm_75 \"a\nb\"",
        ".version",
        ".version 8",
        ".target sm_75",
        ".version 8.0\n.target sm_x",
        ".version 8.0\n.target sm_75\n.address_size 32",
        ".version 8.0 .target sm_75 .global",
        ".version 8.0 .target sm_75 .global .u32 x = {1, 2};",
        ".version 8.0 .target sm_75 .global .u32 x[;",
        ".version 8.0 .target sm_75 .global .align 3 .u32 x;",
        ".version 8.0 .target sm_75 .global .u32 x[99999999999999999];",
        ".version 8.0 .target sm_75 .global .u64 x = y;",
        ".version 8.0 .target sm_75 .shared .b8 x[999999]; .entry k() { .reg .b32 %r; mov.u32 %r, x; ret; }",
        ".version 8.0 .target sm_75 .global .u32 x = 1 / 0;",
        ".version 8.0 .target sm_75 .entry k(",
        ".version 8.0 .target sm_75 .entry k() {",
        ".version 8.0 .target sm_75 .entry k() { ret",
        ".version 8.0 .target sm_75 .entry k() { /*",
        ".version 8.0 .target sm_75 .entry k() { .reg .b32 %r<4>; .reg .b32 %r<4>; }",
        ".version 8.0 .target sm_75 .entry k() { .reg .b32 a; .reg .b32 a; }",
        ".version 8.0 .target sm_75 .entry k() { L: L: }",
        ".version 8.0 .target sm_75 .entry k() { .local .b8 x[99999999]; }",
        ".version 8.0 .target sm_75 .visible .entry k() {} .visible .entry k() {}",
        ".version 8.0 .target sm_75 .entry k(.param .b8 p[99999]) { ret; }",
        ".version 8.0 .target sm_75 .section .debug {",
        ".version 8.0 .target sm_75 .func (.param .b32 a, .param .b32 b) f() { ret; }"}) {
    INFO(bad);
    std::string message = compile_error(bad);
    CHECK(message != "");
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("links functions of the device runtime and names missing functions") {
  const auto calls = [](const std::string& name) {
    return ".extern .func (.param .b32 r) " + name +
           "();\n.visible .entry k() { { .param .b32 r; call.uni (r), " + name + ", (); } ret; }\n";
  };
  for (const std::string name : {"cudaGetLastError", "__cudaCDP2GetLastError"})
    CHECK(compile_error(kHead + calls(name)) == "");
  CHECK(compile_error(kHead + calls("cudaDeviceSynchronize"))
            .find("the device runtime's cudaDeviceSynchronize is not supported") == 0);
  CHECK(compile_error(kHead + calls("GetLastError")).find("function 'GetLastError' is undefined") == 0);
  // NVIDIA's own PTX version of the function calls firmware and is replaced.
  const std::string library = kHead +
                              ".extern .func (.param .b32 r) __cuda_syscall_error();\n"
                              ".visible .func (.param .b32 r) cudaGetLastError() { { .param .b32 s; call.uni "
                              "(s), __cuda_syscall_error, (); } ret; }\n";
  const std::string program = kHead + calls("cudaGetLastError");
  const std::string_view texts[] = {program, library};
  CHECK(std::holds_alternative<std::shared_ptr<const Program>>(compile(texts, {})));
}

TEST_CASE("rejects excessive nesting and counts") {
  auto repeat = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  CHECK(compile_error(in_kernel(repeat("{", 100000))) != "");
  CHECK(compile_error(in_kernel("mov.u32 %r0, " + repeat("(", 100000) + "1;")) != "");
  CHECK(compile_error(in_kernel("mov.u32 %r0, " + repeat("-", 100000) + "1;")) != "");
  CHECK(compile_error(kHead + ".global .u32 x[4] = " + repeat("{", 100000) + ";") != "");
  CHECK(compile_error(in_kernel("add" + repeat(".u32", 1000) + " %r0, %r1, %r2;")) != "");
  CHECK(compile_error(in_kernel("call f, (" + repeat("%r0, ", 10000) + "%r0);")) != "");
  CHECK(compile_error(in_kernel(".reg .b32 %many<2000000000>; mov.u32 %many1999999999, 1;")) == "");
}

TEST_CASE("truncated or altered PTX never crashes the compiler") {
  std::string whole = in_kernel(
      "ld.param.u64 %d0, [p]; L: setp.lt.and.f32 %p0|%p1, %f0, 0f3F800000, !%p2; @%p0 bra L; { .param .b32 "
      "a; st.param.b32 [a], %r0; call.uni f, (a); }\n"
      "mov.b64 {%r0, %r1}, %d0; T: .branchtargets L, L; brx.idx %r0, T; atom.global.add.u32 %r0, [%d0+8], "
      "0x10; .loc 1 2 3\n");
  CHECK(compile_error(whole) == "");
  for (size_t length = 0; length < whole.size(); ++length) compile_error(whole.substr(0, length));
  for (size_t at = 0; at < whole.size(); ++at)
    for (char c : {'{', '}', ';', '.', '%', '0', '"', '\0'}) {
      std::string changed = whole;
      changed[at] = c;
      compile_error(changed);
    }
}

TEST_CASE("code() is thread-safe and compiles each kernel once") {
  Loaded loaded(in_kernel("mov.u32 %r0, 1;"));
  const KernelInfo* kernel = loaded.program().find_kernel("k");
  std::vector<KernelCode> seen(4);
  std::vector<std::thread> threads;
  for (auto& code : seen)
    threads.emplace_back([&] {
      auto result = loaded.program().code(*kernel);
      if (auto* found = std::get_if<KernelCode>(&result)) code = *found;
    });
  for (auto& thread : threads) thread.join();
  for (auto& code : seen) {
    CHECK(code.loop_entry != nullptr);
    CHECK(code.loop_entry == seen[0].loop_entry);
  }
}
