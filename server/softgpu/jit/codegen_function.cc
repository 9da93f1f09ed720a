// The frame of a translated function: arguments, basic blocks, guards, and the dispatch of instructions.
#include "server/softgpu/jit/codegen_function.h"

#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu {
namespace {

struct ArchitectureRow {
  std::string_view opcode, where;
};
// Unsupported instructions that need particular GPUs; the error names those.
constexpr ArchitectureRow kOneArchitecture[] = {
    {"wgmma", "9.0"}, {"tcgen05", "10.x"}, {"multimem", "9.0 and later that are connected by NVSwitch"}};

}  // namespace

void FunctionCodegen::run() {
  auto* entry = e_.new_block("entry");
  auto* start = e_.new_block("start");
  llvm::BranchInst* jump = llvm::BranchInst::Create(start, entry);
  e_.entry_builder.SetInsertPoint(jump);
  e_.builder.SetInsertPoint(start);
  try {
    prepare_arguments();
  } catch (const CodegenFailure& failure) {
    throw CodegenFailure{failure.message + " (" + e_.module.image.where(e_.linked, e_.source.line) + ")"};
  }
  prepare_blocks();
  std::vector<llvm::BasicBlock*> block_at(e_.source.code.size() + 1);
  for (size_t label = 0; label < e_.source.labels.size(); ++label) {
    auto*& block = block_at[e_.source.labels[label]];
    if (!block) block = e_.new_block("label");
    e_.label_blocks.push_back(block);
  }
  for (e_.index = 0; e_.index < e_.source.code.size(); ++e_.index) {
    if (block_at[e_.index])
      e_.start_block(block_at[e_.index]);
    else if (e_.builder.GetInsertBlock()->getTerminator())
      e_.builder.SetInsertPoint(e_.new_block("dead"));
    generate_instruction(e_.index);
  }
  if (block_at[e_.source.code.size()]) e_.start_block(block_at[e_.source.code.size()]);
  if (!e_.builder.GetInsertBlock()->getTerminator()) e_.return_from_function();
}

void FunctionCodegen::prepare_blocks() {
  e_.label_blocks.reserve(e_.source.labels.size());
}

void FunctionCodegen::prepare_arguments() {
  e_.thread = e_.function->getArg(0);
  if (e_.source.is_kernel) {
    e_.block = e_.function->getArg(1);
    for (unsigned d = 0; d < 3; ++d) e_.tid[d] = e_.function->getArg(2 + d);
    uint64_t offset = 0;
    if (!e_.source.parameters.empty()) {
      e_.parameter_base = e_.entry_builder.CreateIntToPtr(
          e_.block_field(offsetof(BlockContext, params), e_.builder.getInt64Ty()),
          llvm::PointerType::get(e_.module.context, 0));
    }
    for (uint32_t v = 0; v < e_.source.parameters.size(); ++v) {
      const ptx::Variable& parameter = e_.source.parameters[v];
      offset = (offset + parameter.alignment - 1) & ~uint64_t{parameter.alignment - 1};
      e_.storage[v] = {e_.entry_builder.CreateConstGEP1_64(e_.builder.getInt8Ty(), e_.parameter_base, offset),
                       parameter.size};
      offset += parameter.size;
    }
    return;
  }
  e_.block = e_.entry_builder.CreateLoad(
      llvm::PointerType::get(e_.module.context, 0),
      e_.entry_builder.CreateConstGEP1_64(e_.builder.getInt8Ty(), e_.thread, offsetof(ThreadContext, block)));
  unsigned argument = 1;
  uint32_t variable = 0;
  for (const ptx::Variable& result : e_.source.results) {
    if (result.is_aggregate()) {
      e_.result_pointer = e_.function->getArg(argument++);
      e_.storage[variable] = {e_.result_pointer, result.size};
    }
    ++variable;
  }
  for (const ptx::Variable& parameter : e_.source.parameters) {
    llvm::Value* value = e_.function->getArg(argument++);
    if (parameter.space == Space::reg) {
      Operand target;
      target.kind = Operand::Kind::reg;
      target.index = e_.source.variables[variable].reg;
      e_.write(target, value, parameter.type == Type::pred ? Type::pred : parameter.type);
    } else if (parameter.is_aggregate()) {
      e_.storage[variable] = {value, parameter.size};
    } else {
      e_.builder.CreateStore(value, e_.variable_storage(variable).pointer);
    }
    ++variable;
  }
}

void FunctionCodegen::generate_instruction(uint32_t index) {
  const ptx::Instruction& instruction = e_.source.code[index];
  Decoded decoded(e_.source, instruction);
  try {
    if (!e_.facts.converges.empty() && e_.facts.converges[index])
      e_.call_runtime("softgpu_converge", e_.builder.getVoidTy(),
                      {e_.thread, e_.i32(e_.module.convergence_point(e_.linked, index))});
    if (!instruction.is_predicated || instruction.opcode == "bra") return dispatch(decoded);
    auto* yes = e_.new_block("guarded");
    auto* after = e_.new_block("after");
    e_.builder.CreateCondBr(e_.value_of_guard(instruction), yes, after);
    e_.builder.SetInsertPoint(yes);
    dispatch(decoded);
    e_.start_block(after);
  } catch (const CodegenFailure& failure) {
    std::string text(instruction.text.substr(0, 200));
    for (char& c : text)
      if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = ' ';
    throw CodegenFailure{"unsupported instruction '" + text + "': " + failure.message + " (" +
                         e_.module.image.where(e_.linked, instruction.line) + ")"};
  }
}

void FunctionCodegen::dispatch(Decoded& i) {
  if (const codegen::Translate translate = codegen::find_instruction(i.opcode())) return translate(e_, i);
  for (const ArchitectureRow& row : kOneArchitecture)
    if (row.opcode == i.opcode())
      i.fail("it exists only on GPUs of compute capability " + std::string(row.where) +
             "; compile for compute_80 or compute_90 (without suffix), whose matrix instructions are mma and "
             "wmma");
  i.fail("unknown instruction");
}

}  // namespace gpupool::softgpu
