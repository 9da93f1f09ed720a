// The functions that translate PTX instructions to LLVM IR, one for each group of opcodes. Each takes the
// instruction's modifiers and operands, and throws CodegenFailure for what it does not know. Private to jit/.
#pragma once
#include <string_view>

#include "server/softgpu/jit/emitter.h"

namespace gpupool::softgpu::codegen {

#define INSTRUCTION(opcode, function) void function(Emitter& e, Decoded& i);
#include "server/softgpu/jit/instructions.def"
#undef INSTRUCTION

using Translate = void (*)(Emitter&, Decoded&);
// Returns null for an unknown opcode.
Translate find_instruction(std::string_view opcode);

}  // namespace gpupool::softgpu::codegen
