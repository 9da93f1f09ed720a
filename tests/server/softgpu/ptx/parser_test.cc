// Tests the results of the parser. reject_test.cc of the JIT and the fuzzer test that no input crashes it.
#include "server/softgpu/ptx/parser.h"

#include "tests/support/catch.h"

using namespace gpupool::softgpu::ptx;

namespace {

File parsed(std::string_view text) {
  auto result = parse(text);
  if (auto* error = std::get_if<SyntaxError>(&result)) FAIL(error->line << ": " << error->message);
  return std::get<File>(result);
}
SyntaxError refused(std::string_view text) {
  auto result = parse(text);
  REQUIRE(std::holds_alternative<SyntaxError>(result));
  return std::get<SyntaxError>(result);
}

}  // namespace

TEST_CASE("the header of a file") {
  File file = parsed(
      "// made by hand\n.version 8.7 /* any */\n.target sm_90a, texmode_independent\n.address_size 64\n");
  CHECK(file.version_major == 8);
  CHECK(file.version_minor == 7);
  CHECK(file.target == 90);
  CHECK(refused(".version 8.0\n.target sm_75\n\n.nonsense x;").line == 4);
}

TEST_CASE("variables and their initialisers") {
  File file = parsed(
      ".version 8.0\n.target sm_75\n.visible .global .align 16 .v2 .f32 a[3];\n.const .u16 b[2][2] = {{1, "
      "2}, {3, -1}};\n"
      ".extern .shared .align 8 .b8 c[];\n.weak .global .u64 d = generic(b) + 4;\n.global .u8 e[2] = "
      "{0xFF(a), 0xFF00(a)};\n"
      ".global .f32 f[2] = {0f3F800000, 2.5};\n.global .s32 g = (1 << 4) + 3 * -2, h = ~0;\n.global .b8 i[] "
      "= {1, 2, 3};\n");
  REQUIRE(file.variables.size() == 9);
  auto at = [&](size_t n) -> const Variable& { return file.variables[n]; };
  CHECK(at(0).size == 24);
  CHECK(at(0).alignment == 16);
  CHECK(at(0).linkage == Linkage::visible);
  CHECK(at(1).space == Space::constant);
  CHECK(at(1).alignment == 2);
  REQUIRE(at(1).initialisers.size() == 4);
  CHECK(at(1).initialisers[3].value == ~0ull);
  CHECK(at(2).is_unsized);
  CHECK(at(3).initialisers[0].symbol == "b");
  CHECK(at(3).initialisers[0].value == 4);
  CHECK(at(4).initialisers[1].mask == 0xFF00);
  CHECK(at(5).initialisers[0].is_single);
  CHECK(at(5).initialisers[0].value == 0x3F800000);
  CHECK(at(6).initialisers[0].value == 10);
  CHECK(at(7).name == "h");
  CHECK(at(8).size == 3);
}

TEST_CASE("functions, scopes and names") {
  File file = parsed(
      ".version 8.0\n.target sm_75\n.func (.param .b32 r) f(.param .align 8 .b8 s[16], .reg .u32 x);\n"
      ".visible .entry k(.param .u64 .ptr .global .align 4 p, .param .u32 n) .maxntid 128, 2 .minnctapersm "
      "1\n{\n"
      ".reg .b32 %r<10>;\n.reg .pred p1;\n.loc 1 2 3, function_name $L__x, inlined_at 1 2 3\n"
      "L: @!p1 bra.uni M;\n{ .reg .b32 %r<2>; mov.u32 %r1, %tid.x; bra L; }\nmov.u32 %r1, %ntid.y;\n"
      "ld.global.v2.b32 {%r2, _}, [%r3+-8];\nsetp.lt.and.s32 p1|_, %r1, -5, !p1;\ncall (%r9), f, (n, "
      "%r1);\nM: ret;\n}\n");
  REQUIRE(file.functions.size() == 2);
  CHECK_FALSE(file.functions[0].has_body);
  CHECK(file.functions[0].parameters[0].size == 16);
  CHECK(file.functions[0].parameters[1].space == Space::reg);
  const Function& k = file.functions[1];
  CHECK(k.is_kernel);
  CHECK(k.max_block == std::array<uint32_t, 3>{128, 2, 1});
  REQUIRE(k.code.size() == 8);
  CHECK(k.code[0].is_predicated);
  CHECK(k.code[0].predicate_negated);
  CHECK(k.code[0].line == 9);
  CHECK(k.code[0].text == "bra.uni M");
  const Operand& forward = k.operands(k.code[0])[0];
  CHECK(forward.kind == Operand::Kind::label);
  CHECK(k.labels[forward.index] == 7);
  // %r1 inside the braces is not the %r1 outside.
  CHECK(k.operands(k.code[1])[0].index != k.operands(k.code[3])[0].index);
  CHECK(k.operands(k.code[1])[1].component == 'x');
  CHECK(k.labels[k.operands(k.code[2])[0].index] == 0);
  const Operand& address = k.operands(k.code[4])[1];
  CHECK(address.value == -8);
  CHECK(k.base(address).kind == Operand::Kind::reg);
  CHECK(k.elements(k.operands(k.code[4])[0])[1].kind == Operand::Kind::sink);
  CHECK(k.operands(k.code[5])[0].kind == Operand::Kind::pair);
  CHECK(k.operands(k.code[5])[2].value == -5);
  CHECK(k.operands(k.code[5])[3].negated);
  CHECK(k.modifiers(k.code[5])[1] == "and");
  CHECK(k.operands(k.code[6])[2].count == 2);
  CHECK(k.elements(k.operands(k.code[6])[2])[0].kind == Operand::Kind::variable);
}

TEST_CASE("debugging sections are skipped") {
  File file = parsed(
      ".version 8.0\n.target sm_75, debug\n.file 1 \"a.cu\"\n.entry k() { .pragma \"nounroll\"; ret; }\n"
      ".section .debug_str { .b8 1, 2, 3\nL: .b8 0 }\n.section .debug_info { { } }\n@@DWARF .byte 1\n");
  CHECK(file.functions.size() == 1);
}

TEST_CASE("elements of arrays are operands, counted in elements") {
  File file = parsed(
      ".version 8.0\n.target sm_75\n.global .b32 g[16];\n.global .b16 m[10][10];\n.entry k() { .reg .b64 %d; "
      ".reg .b32 %r;\n"
      ".shared .v4 .b32 s[8];\nmov.u64 %d, s[3];\nmov.u64 %d, g[2 + 1];\nmov.u64 %d, m[33];\nld.global.u32 "
      "%r, g[5];\n"
      "mov.u64 %d, s+3;\n}");
  const Function& k = file.functions[0];
  const auto offset = [&](size_t instruction) { return k.operands(k.code[instruction])[1].value; };
  CHECK(offset(0) == 12);  // as in ptxas, elements of a vector are scalars
  CHECK(offset(1) == 12);
  CHECK(offset(2) == 66);
  CHECK(offset(3) == 20);
  CHECK(offset(4) == 3);
  CHECK(k.operands(k.code[0])[1].kind == Operand::Kind::variable);
  CHECK(k.operands(k.code[1])[1].kind == Operand::Kind::symbol);
  const auto refusal = [](const std::string& instruction) {
    return refused(
        ".version 8.0\n.target sm_75\n.global .b32 g[16], one;\n.entry k() { .reg .b64 %d; .reg .b32 %r;\n" +
        instruction + "\n}");
  };
  CHECK(refusal("mov.u64 %d, one[1];").message.find("'one' is not an array") == 0);
  CHECK(refusal("mov.u64 %d, g[%r];").message.find("the element of 'g' must be a constant") == 0);
  CHECK(refusal("mov.u64 %d, g[1][2];").line == 5);
}

TEST_CASE("error messages name the unexpected token with its line and function") {
  SyntaxError error = refused(".version 8.0\n.target sm_75\n.entry k()\n{\n  mov.u32 %r1 5;\n}");
  CHECK(error.line == 5);
  CHECK(error.message.find("'5'") != std::string::npos);
  CHECK(error.function == "k");
  CHECK(error.in_kernel);
  CHECK(refused(".version 8.0\n.target sm_75\n.entry k() { ret; }\n.nonsense x;").function.empty());
}
