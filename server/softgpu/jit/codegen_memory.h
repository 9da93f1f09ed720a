// Addresses: resolving operands, and checks of accesses. For the code of instructions (instructions.h).
#pragma once
#include "server/softgpu/jit/emitter.h"

namespace gpupool::softgpu::codegen {

// An operand that names memory.
struct Address {
  enum class Kind { generic, shared, storage } kind = Kind::generic;
  llvm::Value* value = nullptr;  // generic: i64 address; shared: i64 offset; storage: i64 offset
  uint32_t variable = 0;         // storage
  uint64_t safe_bytes = 0;       // generic: number of bytes known to be accessible
  uint64_t safe_alignment = 1;   // generic: their known alignment
};

// Computes the address of a memory operand in this state space.
Address resolve(Emitter& e, Decoded& i, const Operand& operand, Space space);
// Returns a pointer for an access of `bytes`, behind code that faults if the access is not allowed.
llvm::Value* checked_pointer(Emitter& e, Decoded& i, const Address& address, uint32_t bytes, bool is_store,
                             bool exact_alignment);
// Takes the modifier of a state space; none: generic.
Space take_space(Emitter& e, Decoded& i);
llvm::Value* shared_base(Emitter& e);
llvm::Value* pointer_to(Emitter& e, llvm::Value* address);
// Notes that `target` is the address in `source` plus `added`, so that checks of it know its variable.
void remember_base(Emitter& e, const Operand& target, const Operand& source, llvm::Value* added);

}  // namespace gpupool::softgpu::codegen
