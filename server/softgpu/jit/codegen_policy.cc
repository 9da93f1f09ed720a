// Cache policies, which have no effect here, and memory on the thread's own stack (alloca).
#include <llvm/Config/llvm-config.h>

#include "server/softgpu/jit/codegen.h"

namespace gpupool::softgpu {
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
void FunctionCodegen::createpolicy(Decoded& i) {
  i.take_any({"fractional", "range", "cvt", "global", "L2"});
  i.take_cache_hints();
  i.take_any({"L2::evict_unchanged"});
  Type type = i.type();
  i.done();
  if (type != Type::b64) i.fail("expected .b64");
  write(i.operand(0), i64(0), type);
}

void FunctionCodegen::alloca_(Decoded& i) {
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
  llvm::Value* size = convert_bits(read(i, 1, type), b_.getInt64Ty(), false);
  auto *small = new_block("small"), *large = new_block("large");
  b_.CreateCondBr(b_.CreateICmpULE(size, i64(kMaxAllocation)), small, large);
  b_.SetInsertPoint(large);
  fault(FaultKind::hardware_stack, i64(0));
  b_.SetInsertPoint(small);
  llvm::AllocaInst* memory = b_.CreateAlloca(b_.getInt8Ty(), size);
  memory->setAlignment(llvm::Align(alignment));
  // Clear the memory: no undefined values may reach LLVM, and every page must be touched before memory beyond
  // it.
  b_.CreateMemSet(memory, b_.getInt8(0), size, llvm::MaybeAlign(alignment));
  write(i.operand(0), b_.CreatePtrToInt(memory, b_.getInt64Ty()), type);
}

// The program gets the number of the stacksave rather than an address: restoring an arbitrary address would
// corrupt the stack.
void FunctionCodegen::prepare_saved_stacks() {
  if (saved_stacks_) return;
  for (const ptx::Instruction& one : f_.code) saved_stack_count_ += one.opcode == "stacksave";
  auto* type = llvm::ArrayType::get(llvm::PointerType::get(m_.context, 0), std::max(saved_stack_count_, 1u));
  saved_stacks_ = entry_.CreateAlloca(type);
  entry_.CreateStore(llvm::Constant::getNullValue(type), saved_stacks_);
}

void FunctionCodegen::stacksave(Decoded& i) {
  Type type = i.type();
  i.done(1);
  prepare_saved_stacks();
  llvm::Value* top = b_.CreateCall(stack_intrinsic(m_.module, llvm::Intrinsic::stacksave));
  b_.CreateStore(top, b_.CreateConstGEP1_32(top->getType(), saved_stacks_, next_saved_stack_));
  write(i.operand(0), llvm::ConstantInt::get(m_.ir_type(type), next_saved_stack_++), type);
}

void FunctionCodegen::stackrestore(Decoded& i) {
  Type type = i.type();
  i.done(1);
  prepare_saved_stacks();
  llvm::Value* number = convert_bits(read(i, 0, type), b_.getInt64Ty(), false);
  auto *known = new_block("known"), *restore = new_block("restore"), *after = new_block("after");
  b_.CreateCondBr(b_.CreateICmpULT(number, i64(saved_stack_count_)), known, after);
  b_.SetInsertPoint(known);
  llvm::Type* pointer = llvm::PointerType::get(m_.context, 0);
  llvm::Value* top = b_.CreateLoad(pointer, b_.CreateGEP(pointer, saved_stacks_, {number}));
  b_.CreateCondBr(b_.CreateIsNotNull(top), restore, after);
  b_.SetInsertPoint(restore);
  b_.CreateCall(stack_intrinsic(m_.module, llvm::Intrinsic::stackrestore), {top});
  start_block(after);
}

}  // namespace gpupool::softgpu
