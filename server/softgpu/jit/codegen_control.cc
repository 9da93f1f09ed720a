// Branches, calls, and instructions that end a thread.
#include "server/softgpu/jit/codegen.h"

namespace gpupool::softgpu {
namespace {

ptx::Variable scalar(Type type) {
  ptx::Variable v;
  v.space = Space::param;
  v.type = type;
  v.size = ptx::bytes_of(type);
  return v;
}

}  // namespace

void FunctionCodegen::nothing(Decoded&) {}

void FunctionCodegen::bra(Decoded& i) {
  i.take("uni");
  i.done(1);
  const Operand& target = i.operand(0);
  if (target.kind != Operand::Kind::label) i.fail("the target is not a label of this function");
  llvm::BasicBlock* to = label_blocks_[target.index];
  if (facts_.yields[index_]) {
    auto* waiting = new_block("waiting");
    llvm::IRBuilder<>::InsertPointGuard keep(b_);
    b_.SetInsertPoint(waiting);
    call_runtime("softgpu_yield", b_.getVoidTy(), {thread_});
    b_.CreateBr(to);
    to = waiting;
  }
  if (!i.instruction().is_predicated) {
    b_.CreateBr(to);
    return;
  }
  auto* after = new_block("after");
  b_.CreateCondBr(value_of_guard(i.instruction()), to, after);
  b_.SetInsertPoint(after);
}

void FunctionCodegen::brx(Decoded& i) {
  i.take("idx");
  i.take("uni");
  i.done(2);
  const Operand& targets = i.operand(1);
  if (targets.kind != Operand::Kind::targets) i.fail("expected a .branchtargets list");
  llvm::Value* index = read(i, 0, Type::u32);
  if (facts_.yields[index_]) call_runtime("softgpu_yield", b_.getVoidTy(), {thread_});
  auto* beyond = new_block("beyond");
  const auto& list = f_.target_lists[targets.index];
  llvm::SwitchInst* jump = b_.CreateSwitch(index, beyond, static_cast<unsigned>(list.size()));
  for (uint32_t n = 0; n < list.size(); ++n) jump->addCase(b_.getInt32(n), label_blocks_[list[n]]);
  b_.SetInsertPoint(beyond);
  fault(FaultKind::illegal_instruction, i64(0));
}

void FunctionCodegen::ret(Decoded& i) {
  i.take("uni");
  i.done(0);
  return_from_function();
}

void FunctionCodegen::exit(Decoded& i) {
  i.done(0);
  if (f_.is_kernel) {
    b_.CreateRetVoid();
    return;
  }
  auto* call = llvm::cast<llvm::CallInst>(call_runtime("softgpu_exit", b_.getVoidTy(), {thread_}));
  call->getCalledFunction()->addFnAttr(llvm::Attribute::NoReturn);
  b_.CreateUnreachable();
}

void FunctionCodegen::trap(Decoded& i) {
  i.done(0);
  fault(FaultKind::trap, i64(0));
}

llvm::Value* FunctionCodegen::argument(Decoded& i, const Operand& operand, const ptx::Variable& parameter) {
  bool from_memory = operand.kind == Operand::Kind::variable && operand.value == 0 &&
                     f_.variables[operand.index].space == Space::param;
  if (parameter.is_aggregate()) {
    if (!from_memory) i.fail("an array argument must be a .param variable");
    Storage& storage = variable_storage(operand.index);
    if (storage.size < parameter.size) i.fail("an argument is smaller than the parameter");
    return storage.pointer;
  }
  llvm::Type* type = m_.int_type(ptx::bits_of(parameter.type));
  if (!from_memory) return convert_bits(read(operand, parameter.type), type, false);
  Storage& storage = variable_storage(operand.index);
  if (storage.size < parameter.size) i.fail("an argument is smaller than the parameter");
  return b_.CreateFreeze(b_.CreateAlignedLoad(type, storage.pointer, llvm::Align(1)));
}

void FunctionCodegen::store_result(Decoded& i, const Operand& operand, llvm::Value* value,
                                   const ptx::Variable& result) {
  if (operand.kind == Operand::Kind::variable && f_.variables[operand.index].space == Space::param) {
    Storage& storage = variable_storage(operand.index);
    if (storage.size < result.size) i.fail("the variable is smaller than the result");
    b_.CreateAlignedStore(value, storage.pointer, llvm::Align(1));
    return;
  }
  write(operand, convert_bits(value, m_.ir_type(result.type), false), result.type);
}

void FunctionCodegen::call_function(Decoded& i, llvm::FunctionType* type, llvm::Value* callee,
                                    const std::vector<ptx::Variable>& results,
                                    const std::vector<ptx::Variable>& parameters,
                                    std::span<const Operand> result_operands,
                                    std::span<const Operand> arguments) {
  if (arguments.size() != parameters.size()) i.fail("wrong number of arguments");
  if (result_operands.size() > 1) i.fail("functions with several results are not supported");
  // A declaration may promise a result that the definition in another image does not have; the variable keeps
  // its value.
  if (results.empty()) result_operands = {};
  std::vector<llvm::Value*> values{thread_};
  bool in_memory = !results.empty() && results[0].is_aggregate();
  if (in_memory) {
    if (result_operands.empty()) {
      values.push_back(temporary(llvm::ArrayType::get(b_.getInt8Ty(), results[0].size)));
    } else {
      ptx::Variable whole = results[0];
      values.push_back(argument(i, result_operands[0], whole));
    }
  }
  for (size_t n = 0; n < parameters.size(); ++n) values.push_back(argument(i, arguments[n], parameters[n]));
  llvm::CallInst* result = b_.CreateCall(type, callee, values);
  if (!result_operands.empty() && !in_memory) store_result(i, result_operands[0], result, results[0]);
}

void FunctionCodegen::call_builtin(Decoded& i, const Builtin& builtin, std::span<const Operand> results,
                                   std::span<const Operand> arguments) {
  auto variable = [](const Builtin::Value& value) {
    auto made = scalar(value.is_struct ? Type::b8 : value.bytes == 8 ? Type::u64 : Type::u32);
    made.is_array = value.is_struct;
    made.size = value.bytes;
    return made;
  };
  if (arguments.size() != builtin.arguments.size()) i.fail("wrong number of arguments");
  std::vector<llvm::Value*> values{thread_};
  for (size_t n = 0; n < arguments.size(); ++n)
    values.push_back(argument(i, arguments[n], variable(builtin.arguments[n])));
  llvm::Type* type = builtin.result.bytes == 0
                         ? b_.getVoidTy()
                         : static_cast<llvm::Type*>(b_.getIntNTy(builtin.result.bytes * 8));
  auto* call = llvm::cast<llvm::CallInst>(call_runtime(builtin.symbol, type, values));
  if (!builtin.returns) {
    call->getCalledFunction()->addFnAttr(llvm::Attribute::Cold);
    call->getCalledFunction()->addFnAttr(llvm::Attribute::NoReturn);
    b_.CreateUnreachable();
  } else if (builtin.result.bytes != 0 && !results.empty()) {
    store_result(i, results[0], call, variable(builtin.result));
  }
}

// call (results), target, (arguments), prototype: every part except the target is optional.
void FunctionCodegen::call(Decoded& i) {
  i.take("uni");
  i.done();
  size_t at = 0;
  std::span<const Operand> results, arguments;
  if (i.operand(0).kind == Operand::Kind::list && i.operand_count() > 1)
    results = i.elements(i.operand(at++));
  const Operand& target = i.operand(at++);
  if (at < i.operand_count() && i.operand(at).kind == Operand::Kind::list)
    arguments = i.elements(i.operand(at++));
  const Operand* prototype = at < i.operand_count() ? &i.operand(at++) : nullptr;
  if (at != i.operand_count()) i.fail("too many operands");

  if (target.kind == Operand::Kind::symbol) {
    Symbol symbol = m_.image.resolve(linked_.file, target.name);
    if (symbol.kind == Symbol::Kind::builtin)
      return call_builtin(i, builtins()[symbol.index], results, arguments);
    if (symbol.kind != Symbol::Kind::function) i.fail("the function is undefined");
    const ptx::Function& callee = *m_.image.functions[symbol.index].tree;
    if (callee.is_kernel) i.fail("a kernel cannot be called");
    llvm::Function* function = m_.function(symbol.index);
    call_function(i, function->getFunctionType(), function, callee.results, callee.parameters, results,
                  arguments);
    return;
  }
  if (target.kind != Operand::Kind::reg) i.fail("the target is neither a function nor a register");
  if (!prototype || prototype->kind != Operand::Kind::prototype) i.fail("an indirect call needs a prototype");
  const ptx::Prototype& written = f_.prototypes[prototype->index];
  const auto* results_of = &written.results;
  const auto* parameters_of = &written.parameters;
  if (!written.signature_of.empty()) {
    const Symbol symbol = m_.image.resolve(linked_.file, written.signature_of);
    if (symbol.kind != Symbol::Kind::function) i.fail("the first target of the call is not a function");
    results_of = &m_.image.functions[symbol.index].tree->results;
    parameters_of = &m_.image.functions[symbol.index].tree->parameters;
  }
  llvm::FunctionType* type = m_.function_type(*results_of, *parameters_of);
  llvm::GlobalVariable* table = m_.function_table(*results_of, *parameters_of);

  llvm::Value* address = read(target, Type::u64);
  llvm::Value* distance = b_.CreateSub(address, i64(kFunctionAddressBase));
  static_assert(kFunctionAddressStep == 16);
  llvm::Value* index =
      b_.CreateCall(llvm::Intrinsic::getDeclaration(&m_.module, llvm::Intrinsic::fshr, {b_.getInt64Ty()}),
                    {distance, distance, i64(4)});
  auto *known = new_block("known"), *bad = new_block("bad"), *good = new_block("good");
  b_.CreateCondBr(b_.CreateICmpULT(index, i64(m_.image.functions.size())), known, bad);
  b_.SetInsertPoint(known);
  llvm::Value* entry = b_.CreateGEP(llvm::PointerType::get(m_.context, 0), table, {index});
  llvm::Value* callee = b_.CreateLoad(llvm::PointerType::get(m_.context, 0), entry);
  b_.CreateCondBr(b_.CreateIsNotNull(callee), good, bad);
  b_.SetInsertPoint(bad);
  fault(FaultKind::invalid_pc, address);
  b_.SetInsertPoint(good);
  call_function(i, type, callee, *results_of, *parameters_of, results, arguments);
}

}  // namespace gpupool::softgpu
