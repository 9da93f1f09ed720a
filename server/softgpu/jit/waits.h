// Whether a thread may wait for others at an instruction, as the rows of instructions.def say. Private to
// jit/'s analyses; pure.
#pragma once
#include <algorithm>
#include <iterator>
#include <string_view>

namespace gpupool::softgpu {

enum class Waits { never, alone, with_warp };

struct WaitingOpcode {
  std::string_view opcode;
  Waits waits;
};
inline constexpr WaitingOpcode kWaitingOpcodes[] = {
#define INSTRUCTION(opcode, function)
#define WARP_INSTRUCTION(opcode, function) {#opcode, Waits::with_warp},
#define WAITING_INSTRUCTION(opcode, function) {#opcode, Waits::alone},
#include "server/softgpu/jit/instructions.def"
#undef INSTRUCTION
};

inline Waits waits_of(std::string_view opcode) {
  const auto* const found = std::find_if(std::begin(kWaitingOpcodes), std::end(kWaitingOpcodes),
                                         [&](const WaitingOpcode& one) { return one.opcode == opcode; });
  return found == std::end(kWaitingOpcodes) ? Waits::never : found->waits;
}

}  // namespace gpupool::softgpu
