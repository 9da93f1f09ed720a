// What the code generator and the linker want to know about a function before code is generated. No LLVM
// here.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "server/softgpu/jit/convergence.h"
#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

// A register that always holds the address of one .local or .param variable plus an offset. Such accesses
// stay visible to LLVM as accesses to that variable, so that it can live in registers.
constexpr uint32_t kNoVariable = UINT32_MAX;

struct FunctionFacts {
  std::vector<uint32_t> definitions;  // per register: how many instructions write it
  std::vector<uint32_t> based_on;     // per register: index of the variable it points into, or kNoVariable
  std::vector<bool> flushed;          // per register: every definition flushes subnormals (.ftz)
  std::vector<bool> yields;  // per instruction: a branch back in a loop that may wait for another thread
  std::vector<bool> converges;  // per instruction: the lanes of a warp meet before it (convergence.h); empty: nowhere
  bool has_yields = false;
  bool synchronises = false;  // barriers, warp operations, waiting loops
  bool has_exit = false;
  bool has_indirect_call = false;
  uint32_t live_registers = 0;
  bool uses_reserved_shared = false;      // %reserved_smem_offset_*
  std::vector<std::string_view> callees;  // direct calls
  std::vector<std::string_view>
      referenced;                        // other symbols used: variables and functions whose address is taken
  std::vector<uint32_t> used_variables;  // function-scope variables that instructions refer to
};

FunctionFacts analyse(const ptx::Function& function, Convergence converge_warps);

// registers.cc: how many 32-bit registers hold values at once.
uint32_t live_registers(const ptx::Function& function);

}  // namespace gpupool::softgpu
