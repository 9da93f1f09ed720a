// mbarrier objects: 64-bit words in shared memory, whose layout is defined in support.cc. Copies complete at
// once, so waiting for them never waits.
#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/jit/support.h"

namespace gpupool::softgpu {
namespace {

void take_qualifiers(Decoded& i) {
  i.take_any({"release", "acquire", "relaxed", "cta", "cluster", "gpu", "sys", "noComplete"});
}

}  // namespace

llvm::Value* FunctionCodegen::mbarrier_pointer(Decoded& i, size_t operand, Space space) {
  return checked_pointer(i, resolve(i, i.operand(operand), space), 8, true, true);
}

void FunctionCodegen::mbarrier(Decoded& i) {
  std::string_view op = i.take_one({"init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx",
                                    "test_wait", "try_wait", "pending_count"});
  bool expects = op == "arrive" || op == "arrive_drop" ? i.take("expect_tx") : false;
  bool parity = i.take("parity");
  take_qualifiers(i);
  Space space = take_space(i);
  Type type = i.type();
  i.done();
  size_t count = i.operand_count();
  llvm::Type* word = b_.getInt64Ty();
  auto call = [&](const char* name, std::initializer_list<llvm::Value*> arguments) {
    return call_runtime(name, word, arguments);
  };
  if (type != Type::b64) i.fail("expected .b64");
  if (op == "init") {
    b_.CreateStore(call_pure("softgpu_mbarrier_new", word, {read(i, 1, Type::u32)}),
                   mbarrier_pointer(i, 0, space));
  } else if (op == "inval") {
    b_.CreateStore(i64(0), mbarrier_pointer(i, 0, space));
  } else if (op == "arrive" || op == "arrive_drop") {
    size_t at =
        count > 0 && i.operand(0).kind == Operand::Kind::address ? 0 : 1;  // the state operand is optional
    llvm::Value* number = count > at + 1 ? read(i, at + 1, Type::u32) : i32(expects ? 0 : 1);
    llvm::Value* pointer = mbarrier_pointer(i, at, space);
    if (expects) call("softgpu_mbarrier_transfer", {pointer, b_.CreateZExt(number, word)});
    llvm::Value* arrivals = expects ? i32(1) : number;
    llvm::Value* state = call("softgpu_mbarrier_arrive", {pointer, arrivals, i32(op == "arrive_drop")});
    if (at == 1) write(i.operand(0), state, type);
  } else if (op == "expect_tx" || op == "complete_tx") {
    llvm::Value* bytes = b_.CreateZExt(read(i, 1, Type::u32), word);
    call("softgpu_mbarrier_transfer",
         {mbarrier_pointer(i, 0, space), op == "expect_tx" ? bytes : b_.CreateNeg(bytes)});
  } else if (op == "test_wait" || op == "try_wait") {
    llvm::LoadInst* now = b_.CreateAlignedLoad(word, mbarrier_pointer(i, 1, space), llvm::Align(8), true);
    llvm::Value* phase = b_.CreateLShr(now, 63);
    llvm::Value* waited = parity ? b_.CreateAnd(b_.CreateZExt(read(i, 2, Type::u32), word), i64(1))
                                 : b_.CreateLShr(read(i, 2, type), 63);
    llvm::Value* complete = b_.CreateICmpNE(phase, waited);
    write(i.operand(0), complete, Type::pred);
    auto *waiting = new_block("waiting"), *after = new_block("after");
    b_.CreateCondBr(complete, after, waiting);
    b_.SetInsertPoint(waiting);
    call_runtime("softgpu_yield", b_.getVoidTy(), {thread_});
    start_block(after);
  } else if (op == "pending_count") {
    write(i.operand(0), call_pure("softgpu_mbarrier_pending", b_.getInt32Ty(), {read(i, 1, type)}),
          Type::u32);
  } else {
    i.fail("unknown operation");
  }
}

// cp.async.mbarrier.arrive: without .noinc the pending count is first incremented, so the arrival leaves it
// unchanged.
void FunctionCodegen::cp_mbarrier_arrive(Decoded& i) {
  bool counts = i.take("noinc");
  i.take("arrive");
  Space space = take_space(i);
  i.take("b64");
  i.done(1);
  llvm::Value* pointer = mbarrier_pointer(i, 0, space);
  if (counts) call_runtime("softgpu_mbarrier_arrive", b_.getInt64Ty(), {pointer, i32(1), i32(0)});
}

}  // namespace gpupool::softgpu
