// Facts about a function that the linker and the code generator need before code is generated. No LLVM here.
// Computed once per function by the linker, on the thread that compiles.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "server/softgpu/jit/convergence.h"
#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

// FunctionFacts::based_on of a register that does not always hold the address of one .local or .param
// variable plus an offset. Accesses through the other registers are generated as accesses to their variable,
// so that LLVM can keep it in registers.
constexpr uint32_t kNoVariable = UINT32_MAX;

struct FunctionFacts {
  std::vector<uint32_t> definitions;  // per register: number of instructions that write it
  std::vector<uint32_t> based_on;     // per register: index of the variable it points into, or kNoVariable
  std::vector<bool> flushed;          // per register: every definition flushes subnormals (.ftz)
  std::vector<bool> yields;           // per instruction: back edge of a loop that may wait for another thread
  // per instruction: the lanes of a warp converge before it (convergence.h); empty: none
  std::vector<bool> converges;
  bool has_yields = false;
  bool synchronises = false;  // has barriers, warp operations, or loops that wait
  bool has_exit = false;
  bool has_indirect_call = false;
  uint32_t live_registers = 0;
  bool uses_reserved_shared = false;      // %reserved_smem_offset_*
  std::vector<std::string_view> callees;  // direct calls
  std::vector<std::string_view>
      referenced;  // other symbols used: variables, and functions whose address is taken
  std::vector<uint32_t> used_variables;  // function-scope variables that instructions use
};

FunctionFacts analyse(const ptx::Function& function, Convergence converge_warps);

// Returns the number of 32-bit registers that hold values at once (registers.cc).
uint32_t live_registers(const ptx::Function& function);

}  // namespace gpupool::softgpu
