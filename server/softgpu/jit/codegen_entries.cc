// The entry points of a kernel (ModuleCodegen::generate_entries()).
//
// A kernel that synchronises has one entry, which runs one thread. For others, a function runs a box of
// threads and both entries call it (a single thread is the smallest box), so that the kernel's code exists
// once.
#include <array>

#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/jit/codegen_function.h"

namespace gpupool::softgpu {
namespace {

class EntryCodegen {
 public:
  explicit EntryCodegen(ModuleCodegen& module)
      : module_(module),
        b_(module.context),
        pointer_(llvm::PointerType::get(module.context, 0)),
        number_(module.int_type(32)),
        nothing_(llvm::Type::getVoidTy(module.context)),
        body_(module.body(module.kernel->function)) {}

  void generate() {
    llvm::Function* const entry = create(kThreadEntryName, {pointer_});
    llvm::Value* const thread = entry->getArg(0);
    llvm::Value* const block = field(thread, offsetof(ThreadContext, block), pointer_);
    const std::array<llvm::Value*, 3> tid = load_tid(thread);
    if (module_.kernel->info.synchronises) {
      reset_runtime_error(thread);
      b_.CreateCall(body_, {thread, block, tid[0], tid[1], tid[2]});
      b_.CreateRetVoid();
      return;
    }
    llvm::Function* const run = declare_run();
    llvm::Value* const one = b_.getInt32(1);
    b_.CreateCall(run, {block, thread, tid[0], b_.CreateAdd(tid[0], one), tid[1], b_.CreateAdd(tid[1], one),
                        tid[2], b_.CreateAdd(tid[2], one)});
    b_.CreateRetVoid();
    generate_loop_entry(run);
    generate_run(run);
  }

 private:
  // Creates an entry, and continues in its first block.
  llvm::Function* create(const char* name, std::initializer_list<llvm::Type*> arguments) {
    auto* function =
        llvm::Function::Create(llvm::FunctionType::get(nothing_, std::vector<llvm::Type*>(arguments), false),
                               llvm::GlobalValue::ExternalLinkage, name, module_.module);
    ModuleCodegen::add_common_attributes(function);
    b_.SetInsertPoint(llvm::BasicBlock::Create(module_.context, "entry", function));
    return function;
  }
  llvm::LoadInst* field(llvm::Value* base, uint64_t offset, llvm::Type* type) {
    return b_.CreateLoad(type, b_.CreateConstGEP1_64(b_.getInt8Ty(), base, offset));
  }
  void store(llvm::Value* value, llvm::Value* base, uint64_t offset) {
    b_.CreateStore(value, b_.CreateConstGEP1_64(b_.getInt8Ty(), base, offset));
  }
  void reset_runtime_error(llvm::Value* thread) {
    if (module_.image.uses_device_runtime)
      store(b_.getInt32(0), thread, offsetof(ThreadContext, runtime_error));
  }
  std::array<llvm::Value*, 3> load_tid(llvm::Value* thread);
  llvm::Function* declare_run();
  void generate_loop_entry(llvm::Function* run);
  void generate_run(llvm::Function* run);

  ModuleCodegen& module_;
  llvm::IRBuilder<> b_;
  llvm::Type* const pointer_;
  llvm::Type* const number_;
  llvm::Type* const nothing_;
  llvm::Function* const body_;
};

std::array<llvm::Value*, 3> EntryCodegen::load_tid(llvm::Value* thread) {
  llvm::Metadata* below[] = {llvm::ConstantAsMetadata::get(b_.getInt32(0)),
                             llvm::ConstantAsMetadata::get(b_.getInt32(module_.kernel->info.max_threads))};
  std::array<llvm::Value*, 3> tid{};
  for (unsigned d = 0; d < 3; ++d) {
    auto* load = field(thread, offsetof(ThreadContext, tid) + 4 * d, number_);
    load->setMetadata(llvm::LLVMContext::MD_range, llvm::MDNode::get(module_.context, below));
    tid[d] = load;
  }
  return tid;
}

// void run(block, thread, first and end of x, of y, of z)
llvm::Function* EntryCodegen::declare_run() {
  llvm::Function* const run = llvm::Function::Create(
      llvm::FunctionType::get(
          nothing_, {pointer_, pointer_, number_, number_, number_, number_, number_, number_}, false),
      llvm::Function::InternalLinkage, "run", module_.module);
  ModuleCodegen::add_common_attributes(run);
  run->addFnAttr(llvm::Attribute::NoInline);
  run->addDereferenceableParamAttr(0, sizeof(BlockContext));
  run->addDereferenceableParamAttr(1, sizeof(ThreadContext));
  run->addParamAttr(1, llvm::Attribute::NoAlias);
  return run;
}

void EntryCodegen::generate_loop_entry(llvm::Function* run) {
  llvm::Function* const entry = create(kLoopEntryName, {pointer_, pointer_});
  llvm::Value* const block = entry->getArg(0);
  llvm::Value* const zero = b_.getInt32(0);
  llvm::Value* size[3];
  for (unsigned d = 0; d < 3; ++d) size[d] = field(block, offsetof(BlockContext, block_dim) + 4 * d, number_);
  b_.CreateCall(run, {block, entry->getArg(1), zero, size[0], zero, size[1], zero, size[2]});
  b_.CreateRetVoid();
}

// Three nested loops around a call of the kernel's body.
void EntryCodegen::generate_run(llvm::Function* run) {
  llvm::Value* const block = run->getArg(0);
  llvm::Value* const thread = run->getArg(1);
  const auto create_block = [&](const char* name) {
    return llvm::BasicBlock::Create(module_.context, name, run);
  };
  auto* const entry = create_block("entry");
  llvm::BasicBlock* loops[3];
  for (int d = 2; d >= 0; --d) loops[d] = create_block("loop");
  llvm::BasicBlock* ends[3];
  for (auto& end : ends) end = create_block("end");
  auto* const finished = create_block("finished");
  b_.SetInsertPoint(entry);
  llvm::Value* const width = field(block, offsetof(BlockContext, block_dim), number_);
  llvm::Value* const height = field(block, offsetof(BlockContext, block_dim) + 4, number_);
  store(block, thread, offsetof(ThreadContext, block));
  b_.CreateBr(loops[2]);
  llvm::PHINode* at[3];
  for (int d = 2; d >= 0; --d) {
    auto* const before = b_.GetInsertBlock();
    b_.SetInsertPoint(loops[d]);
    at[d] = b_.CreatePHI(number_, 2);
    at[d]->addIncoming(run->getArg(2 + 2 * static_cast<unsigned>(d)), before);
    store(at[d], thread, offsetof(ThreadContext, tid) + 4 * static_cast<uint64_t>(d));
    if (d > 0) b_.CreateBr(loops[d - 1]);
  }
  llvm::Value* const linear =
      b_.CreateAdd(b_.CreateMul(b_.CreateAdd(b_.CreateMul(at[2], height), at[1]), width), at[0]);
  store(b_.CreateAnd(linear, b_.getInt32(kWarpSize - 1)), thread, offsetof(ThreadContext, lane));
  store(b_.CreateLShr(linear, b_.getInt32(5)), thread, offsetof(ThreadContext, warp));
  store(linear, thread, offsetof(ThreadContext, linear_tid));
  reset_runtime_error(thread);
  b_.CreateCall(body_, {thread, block, at[0], at[1], at[2]});
  b_.CreateBr(ends[0]);
  for (int d = 0; d < 3; ++d) {
    b_.SetInsertPoint(ends[d]);
    llvm::Value* const next = b_.CreateAdd(at[d], b_.getInt32(1), "", true, true);
    at[d]->addIncoming(next, ends[d]);
    b_.CreateCondBr(b_.CreateICmpULT(next, run->getArg(3 + 2 * static_cast<unsigned>(d))), loops[d],
                    d < 2 ? ends[d + 1] : finished);
  }
  b_.SetInsertPoint(finished);
  b_.CreateRetVoid();
}

}  // namespace

void ModuleCodegen::generate_entries() {
  EntryCodegen(*this).generate();
}

}  // namespace gpupool::softgpu
