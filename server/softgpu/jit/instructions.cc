#include "server/softgpu/jit/instructions.h"

#include <unordered_map>

namespace gpupool::softgpu::codegen {

Translate find_instruction(std::string_view opcode) {
  static const std::unordered_map<std::string_view, Translate> kInstructions = {
#define INSTRUCTION(opcode, function) {#opcode, &function},
#include "server/softgpu/jit/instructions.def"
#undef INSTRUCTION
  };
  const auto found = kInstructions.find(opcode);
  return found == kInstructions.end() ? nullptr : found->second;
}

}  // namespace gpupool::softgpu::codegen
