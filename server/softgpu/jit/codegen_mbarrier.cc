// mbarrier objects: 64-bit words in shared memory, whose layout is defined in support.cc. Copies complete at
// once, so waiting for them never waits.
#include "server/softgpu/jit/codegen_mbarrier.h"

#include "server/softgpu/jit/codegen_memory.h"
#include "server/softgpu/jit/instructions.h"
#include "server/softgpu/jit/support.h"

namespace gpupool::softgpu::codegen {
namespace {

void take_qualifiers(Decoded& i) {
  i.take_any({"release", "acquire", "relaxed", "cta", "cluster", "gpu", "sys", "noComplete"});
}

}  // namespace

llvm::Value* mbarrier_pointer(Emitter& e, Decoded& i, size_t operand, Space space) {
  return checked_pointer(e, i, resolve(e, i, i.operand(operand), space), 8, true, true);
}

void mbarrier(Emitter& e, Decoded& i) {
  std::string_view op = i.take_one({"init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx",
                                    "test_wait", "try_wait", "pending_count"});
  bool expects = op == "arrive" || op == "arrive_drop" ? i.take("expect_tx") : false;
  bool parity = i.take("parity");
  take_qualifiers(i);
  Space space = take_space(e, i);
  Type type = i.type();
  i.done();
  size_t count = i.operand_count();
  llvm::Type* word = e.builder.getInt64Ty();
  auto call = [&](const char* name, std::initializer_list<llvm::Value*> arguments) {
    return e.call_runtime(name, word, arguments);
  };
  if (type != Type::b64) i.fail("expected .b64");
  if (op == "init") {
    e.builder.CreateStore(e.call_pure("softgpu_mbarrier_new", word, {e.read(i, 1, Type::u32)}),
                          mbarrier_pointer(e, i, 0, space));
  } else if (op == "inval") {
    e.builder.CreateStore(e.i64(0), mbarrier_pointer(e, i, 0, space));
  } else if (op == "arrive" || op == "arrive_drop") {
    size_t at =
        count > 0 && i.operand(0).kind == Operand::Kind::address ? 0 : 1;  // the state operand is optional
    llvm::Value* number = count > at + 1 ? e.read(i, at + 1, Type::u32) : e.i32(expects ? 0 : 1);
    llvm::Value* pointer = mbarrier_pointer(e, i, at, space);
    if (expects) call("softgpu_mbarrier_transfer", {pointer, e.builder.CreateZExt(number, word)});
    llvm::Value* arrivals = expects ? e.i32(1) : number;
    llvm::Value* state = call("softgpu_mbarrier_arrive", {pointer, arrivals, e.i32(op == "arrive_drop")});
    if (at == 1) e.write(i.operand(0), state, type);
  } else if (op == "expect_tx" || op == "complete_tx") {
    llvm::Value* bytes = e.builder.CreateZExt(e.read(i, 1, Type::u32), word);
    call("softgpu_mbarrier_transfer",
         {mbarrier_pointer(e, i, 0, space), op == "expect_tx" ? bytes : e.builder.CreateNeg(bytes)});
  } else if (op == "test_wait" || op == "try_wait") {
    llvm::LoadInst* now =
        e.builder.CreateAlignedLoad(word, mbarrier_pointer(e, i, 1, space), llvm::Align(8), true);
    llvm::Value* phase = e.builder.CreateLShr(now, 63);
    llvm::Value* waited =
        parity ? e.builder.CreateAnd(e.builder.CreateZExt(e.read(i, 2, Type::u32), word), e.i64(1))
               : e.builder.CreateLShr(e.read(i, 2, type), 63);
    llvm::Value* complete = e.builder.CreateICmpNE(phase, waited);
    e.write(i.operand(0), complete, Type::pred);
    auto *waiting = e.new_block("waiting"), *after = e.new_block("after");
    e.builder.CreateCondBr(complete, after, waiting);
    e.builder.SetInsertPoint(waiting);
    e.call_runtime("softgpu_yield", e.builder.getVoidTy(), {e.thread});
    e.start_block(after);
  } else if (op == "pending_count") {
    e.write(i.operand(0),
            e.call_pure("softgpu_mbarrier_pending", e.builder.getInt32Ty(), {e.read(i, 1, type)}), Type::u32);
  } else {
    i.fail("unknown operation");
  }
}

// cp.async.mbarrier.arrive: without .noinc the pending count is first incremented, so the arrival leaves it
// unchanged.
void cp_mbarrier_arrive(Emitter& e, Decoded& i) {
  bool counts = i.take("noinc");
  i.take("arrive");
  Space space = take_space(e, i);
  i.take("b64");
  i.done(1);
  llvm::Value* pointer = mbarrier_pointer(e, i, 0, space);
  if (counts)
    e.call_runtime("softgpu_mbarrier_arrive", e.builder.getInt64Ty(), {pointer, e.i32(1), e.i32(0)});
}

}  // namespace gpupool::softgpu::codegen
