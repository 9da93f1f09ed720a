// Cache policies, which have no effect here, and memory on the thread's own stack (alloca).
#include <llvm/Config/llvm-config.h>

#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {
namespace {

constexpr uint64_t kMaxAllocation = 512 * 1024;  // CUDA's limit for a thread's local memory, in bytes

llvm::Function* stack_intrinsic(llvm::Module& module, llvm::Intrinsic::ID id) {
#if LLVM_VERSION_MAJOR >= 18
  return llvm::Intrinsic::getDeclaration(&module, id, {llvm::PointerType::get(module.getContext(), 0)});
#else
  return llvm::Intrinsic::getDeclaration(&module, id);
#endif
}

}  // namespace

// A policy is a number that no instruction evaluates.
void createpolicy(Emitter& e, Decoded& i) {
  i.take_any({"fractional", "range", "cvt", "global", "L2"});
  i.take_cache_hints();
  i.take_any({"L2::evict_unchanged"});
  Type type = i.type();
  i.done();
  if (type != Type::b64) i.fail("expected .b64");
  e.write(i.operand(0), e.i64(0), type);
}

void alloca_(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done();
  if (i.operand_count() < 2 || i.operand_count() > 3) i.fail("expected a size");
  uint64_t alignment = 8;
  if (i.operand_count() == 3) {
    const Operand& wanted = i.operand(2);
    if (wanted.kind != Operand::Kind::integer || wanted.value <= 0 || wanted.value > 4096 ||
        (wanted.value & (wanted.value - 1)))
      i.fail("the alignment must be a power of two up to 4096");
    alignment = static_cast<uint64_t>(wanted.value);
  }
  llvm::Value* size = e.convert_bits(e.read(i, 1, type), e.builder.getInt64Ty(), false);
  auto *small = e.new_block("small"), *large = e.new_block("large");
  e.builder.CreateCondBr(e.builder.CreateICmpULE(size, e.i64(kMaxAllocation)), small, large);
  e.builder.SetInsertPoint(large);
  e.fault(FaultKind::hardware_stack, e.i64(0));
  e.builder.SetInsertPoint(small);
  llvm::AllocaInst* memory = e.builder.CreateAlloca(e.builder.getInt8Ty(), size);
  memory->setAlignment(llvm::Align(alignment));
  // Clear the memory: no undefined values may reach LLVM, and every page must be touched before memory beyond
  // it.
  e.builder.CreateMemSet(memory, e.builder.getInt8(0), size, llvm::MaybeAlign(alignment));
  e.write(i.operand(0), e.builder.CreatePtrToInt(memory, e.builder.getInt64Ty()), type);
}

namespace {

// The program gets the number of the stacksave rather than an address: restoring an arbitrary address would
// corrupt the stack.
void prepare_saved_stacks(Emitter& e) {
  if (e.saved_stacks) return;
  for (const ptx::Instruction& one : e.source.code) e.saved_stack_count += one.opcode == "stacksave";
  auto* type =
      llvm::ArrayType::get(llvm::PointerType::get(e.module.context, 0), std::max(e.saved_stack_count, 1u));
  e.saved_stacks = e.entry_builder.CreateAlloca(type);
  e.entry_builder.CreateStore(llvm::Constant::getNullValue(type), e.saved_stacks);
}

}  // namespace

void stacksave(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(1);
  prepare_saved_stacks(e);
  llvm::Value* top = e.builder.CreateCall(stack_intrinsic(e.module.module, llvm::Intrinsic::stacksave));
  e.builder.CreateStore(top,
                        e.builder.CreateConstGEP1_32(top->getType(), e.saved_stacks, e.next_saved_stack));
  e.write(i.operand(0), llvm::ConstantInt::get(e.module.ir_type(type), e.next_saved_stack++), type);
}

void stackrestore(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(1);
  prepare_saved_stacks(e);
  llvm::Value* number = e.convert_bits(e.read(i, 0, type), e.builder.getInt64Ty(), false);
  auto *known = e.new_block("known"), *restore = e.new_block("restore"), *after = e.new_block("after");
  e.builder.CreateCondBr(e.builder.CreateICmpULT(number, e.i64(e.saved_stack_count)), known, after);
  e.builder.SetInsertPoint(known);
  llvm::Type* pointer = llvm::PointerType::get(e.module.context, 0);
  llvm::Value* top = e.builder.CreateLoad(pointer, e.builder.CreateGEP(pointer, e.saved_stacks, {number}));
  e.builder.CreateCondBr(e.builder.CreateIsNotNull(top), restore, after);
  e.builder.SetInsertPoint(restore);
  e.builder.CreateCall(stack_intrinsic(e.module.module, llvm::Intrinsic::stackrestore), {top});
  e.start_block(after);
}

}  // namespace gpupool::softgpu::codegen
