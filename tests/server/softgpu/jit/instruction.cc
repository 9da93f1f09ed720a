#include "tests/server/softgpu/jit/instruction.h"

namespace gpupool::softgpu {

std::string instruction_kernel(const std::string& code, const std::array<std::string, 4>& types) {
  auto bits = [](const std::string& type) { return type.substr(1); };
  auto declare = [&](const char* name, const std::string& type) {
    // There are no 8-bit arithmetic registers.
    return "  .reg .b" + (bits(type) == "8" ? std::string("16") : bits(type)) + " " + name + ";\n";
  };
  std::string text =
      ".version 8.0\n.target sm_75\n.address_size 64\n"
      ".visible .entry k(.param .u64 out, .param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 n) {\n"
      "  .reg .pred %p, %q, %done;\n  .reg .b32 %i, %n, %who, %t<8>;\n  .reg .b64 %x, %off, %w<8>;\n  .reg "
      ".b16 %h<8>;\n";
  const char* registers[] = {"%d", "%a", "%b", "%c"};
  for (int n = 0; n < 4; ++n) text += declare(registers[n], types[static_cast<size_t>(n)]);
  text +=
      "  mov.u32 %i, %ctaid.x;\n  mov.u32 %n, %ntid.x;\n  mov.u32 %who, %tid.x;\n  mad.lo.s32 %i, %i, %n, "
      "%who;\n"
      "  ld.param.u32 %n, [n];\n  setp.ge.u32 %done, %i, %n;\n  @%done bra END;\n";
  const char* arrays[] = {"out", "pa", "pb", "pc"};
  for (int n = 1; n < 4; ++n) {
    const std::string& type = types[static_cast<size_t>(n)];
    text += std::string("  ld.param.u64 %x, [") + arrays[n] + "];\n  mul.wide.u32 %off, %i, " +
            std::to_string(std::stoi(bits(type)) / 8) + ";\n  add.s64 %x, %x, %off;\n  ld.global." + type +
            " " + registers[n] + ", [%x];\n";
  }
  text += "  " + code + "\n";
  text += "  ld.param.u64 %x, [out];\n  mul.wide.u32 %off, %i, " +
          std::to_string(std::stoi(bits(types[0])) / 8) + ";\n  add.s64 %x, %x, %off;\n  st.global." +
          types[0] + " [%x], %d;\nEND:\n  ret;\n}\n";
  return text;
}

}  // namespace gpupool::softgpu
