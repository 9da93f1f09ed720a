// Writes the LLVM IR of one PTX function: reads and writes its registers and operands, and holds the state
// that the translations of its instructions share (instructions.h). Private to jit/; not thread-safe. Throws
// CodegenFailure for operands that cannot be translated.
#pragma once
#include <llvm/IR/IRBuilder.h>

#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/jit/decoded.h"

namespace gpupool::softgpu {

class Emitter {
 public:
  Emitter(ModuleCodegen& module, uint32_t index);

  // Memory of a function-scope variable.
  struct Storage {
    llvm::Value* pointer = nullptr;
    uint64_t size = 0;
  };

  // Blocks.
  void return_from_function();
  llvm::BasicBlock* new_block(const char* name);
  void start_block(llvm::BasicBlock* block);
  // Terminates the current block with a fault of this kind.
  void fault(FaultKind kind, llvm::Value* address);

  // Operands.
  Storage& variable_storage(uint32_t variable);
  llvm::Value* value_of_guard(const ptx::Instruction& i);
  llvm::Value* read(const Operand& operand, Type type);
  llvm::Value* read(Decoded& i, size_t index, Type type) { return read(i.operand(index), type); }
  llvm::Value* read_predicate(const Operand& operand);
  void write(const Operand& operand, llvm::Value* value, Type type);
  llvm::Value* convert_bits(llvm::Value* value, llvm::Type* to, bool sign_extend);
  llvm::Value* symbol_address(const Operand& operand);
  llvm::Value* linked_address(Symbol symbol, std::string_view name);
  std::pair<const Operand*, const Operand*> split_pair(Decoded& i, const Operand& operand);

  // Values and calls.
  llvm::Value* i32(uint32_t value) { return builder.getInt32(value); }
  llvm::Value* i64(uint64_t value) { return builder.getInt64(value); }
  llvm::Value* block_field(uint32_t offset, llvm::Type* type, uint64_t limit = 0);
  llvm::Value* thread_field(uint32_t offset, uint64_t limit = 0);
  llvm::Value* dimension_range(llvm::LoadInst* load, uint64_t low, uint64_t high);
  llvm::AllocaInst* temporary(llvm::Type* type);
  llvm::Value* call_runtime(const char* name, llvm::Type* result, llvm::ArrayRef<llvm::Value*> arguments);
  llvm::Value* call_pure(const char* name, llvm::Type* result, std::initializer_list<llvm::Value*> arguments);
  llvm::Value* intrinsic(llvm::Intrinsic::ID id, std::initializer_list<llvm::Value*> arguments);
  llvm::Value* select_min(llvm::Value* a, llvm::Value* b, bool is_signed);

  // State.
  ModuleCodegen& module;
  const LinkedFunction& linked;
  const ptx::Function& source;
  const FunctionFacts& facts;
  llvm::Function* const function;
  llvm::IRBuilder<> builder;
  llvm::IRBuilder<> entry_builder;  // inserts allocas and context loads at the start of the function
  llvm::Value* thread = nullptr;    // ThreadContext*
  llvm::Value* block = nullptr;     // BlockContext*
  llvm::Value* tid[3] = {};
  llvm::Value* result_pointer = nullptr;  // memory of an aggregate result
  llvm::AllocaInst* carry = nullptr;
  llvm::AllocaInst* saved_stacks = nullptr;  // one per stacksave, null until it has run
  uint32_t saved_stack_count = 0, next_saved_stack = 0;
  std::vector<llvm::AllocaInst*>
      base_offsets;  // per register with a base: its offset from the variable's start
  std::unordered_map<uint32_t, Storage> storage;
  std::map<std::tuple<uint32_t, uint64_t, Type>, llvm::Value*>
      parameters;  // kernel parameters already loaded
  std::vector<llvm::BasicBlock*> label_blocks;
  llvm::Value* parameter_base = nullptr;
  uint32_t index = 0;  // index of the instruction being translated

 private:
  llvm::Value* read_register(uint32_t reg, Type type);
  llvm::Value* read_special(const Operand& operand, Type type);
  llvm::Value* special_64(std::string_view name);
  llvm::Value* special_32(std::string_view name, char component);
  llvm::Value* variable_address(uint32_t variable);
  llvm::Value* function_address(uint32_t index);

  std::vector<llvm::AllocaInst*> registers_;
  std::unordered_map<uint64_t, llvm::Value*> fields_;  // context fields already loaded in the entry block
  struct Temporaries {
    std::vector<llvm::AllocaInst*> memory;
    size_t used = 0;  // number of them in use by `instruction`
    uint32_t instruction = UINT32_MAX;
  };
  std::unordered_map<llvm::Type*, Temporaries> temporaries_;
};

}  // namespace gpupool::softgpu
