// Branches, calls, and instructions that end a thread.
#include "server/softgpu/jit/builtins.h"
#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {
namespace {

ptx::Variable scalar(Type type) {
  ptx::Variable v;
  v.space = Space::param;
  v.type = type;
  v.size = ptx::bytes_of(type);
  return v;
}

}  // namespace

void nothing(Emitter&, Decoded&) {}

void bra(Emitter& e, Decoded& i) {
  i.take("uni");
  i.done(1);
  const Operand& target = i.operand(0);
  if (target.kind != Operand::Kind::label) i.fail("the target is not a label of this function");
  llvm::BasicBlock* to = e.label_blocks[target.index];
  if (e.facts.yields[e.index]) {
    auto* waiting = e.new_block("waiting");
    llvm::IRBuilder<>::InsertPointGuard keep(e.builder);
    e.builder.SetInsertPoint(waiting);
    e.call_runtime("softgpu_yield", e.builder.getVoidTy(), {e.thread});
    e.builder.CreateBr(to);
    to = waiting;
  }
  if (!i.instruction().is_predicated) {
    e.builder.CreateBr(to);
    return;
  }
  auto* after = e.new_block("after");
  e.builder.CreateCondBr(e.value_of_guard(i.instruction()), to, after);
  e.builder.SetInsertPoint(after);
}

void brx(Emitter& e, Decoded& i) {
  i.take("idx");
  i.take("uni");
  i.done(2);
  const Operand& targets = i.operand(1);
  if (targets.kind != Operand::Kind::targets) i.fail("expected a .branchtargets list");
  llvm::Value* index = e.read(i, 0, Type::u32);
  if (e.facts.yields[e.index]) e.call_runtime("softgpu_yield", e.builder.getVoidTy(), {e.thread});
  auto* beyond = e.new_block("beyond");
  const auto& list = e.source.target_lists[targets.index];
  llvm::SwitchInst* jump = e.builder.CreateSwitch(index, beyond, static_cast<unsigned>(list.size()));
  for (uint32_t n = 0; n < list.size(); ++n) jump->addCase(e.builder.getInt32(n), e.label_blocks[list[n]]);
  e.builder.SetInsertPoint(beyond);
  e.fault(FaultKind::illegal_instruction, e.i64(0));
}

void ret(Emitter& e, Decoded& i) {
  i.take("uni");
  i.done(0);
  e.return_from_function();
}

void exit(Emitter& e, Decoded& i) {
  i.done(0);
  if (e.source.is_kernel) {
    e.builder.CreateRetVoid();
    return;
  }
  auto* call = llvm::cast<llvm::CallInst>(e.call_runtime("softgpu_exit", e.builder.getVoidTy(), {e.thread}));
  call->getCalledFunction()->addFnAttr(llvm::Attribute::NoReturn);
  e.builder.CreateUnreachable();
}

void trap(Emitter& e, Decoded& i) {
  i.done(0);
  e.fault(FaultKind::trap, e.i64(0));
}

namespace {

llvm::Value* argument(Emitter& e, Decoded& i, const Operand& operand, const ptx::Variable& parameter) {
  bool from_memory = operand.kind == Operand::Kind::variable && operand.value == 0 &&
                     e.source.variables[operand.index].space == Space::param;
  if (parameter.is_aggregate()) {
    if (!from_memory) i.fail("an array argument must be a .param variable");
    Emitter::Storage& storage = e.variable_storage(operand.index);
    if (storage.size < parameter.size) i.fail("an argument is smaller than the parameter");
    return storage.pointer;
  }
  llvm::Type* type = e.module.int_type(ptx::bits_of(parameter.type));
  if (!from_memory) return e.convert_bits(e.read(operand, parameter.type), type, false);
  Emitter::Storage& storage = e.variable_storage(operand.index);
  if (storage.size < parameter.size) i.fail("an argument is smaller than the parameter");
  return e.builder.CreateFreeze(e.builder.CreateAlignedLoad(type, storage.pointer, llvm::Align(1)));
}

void store_result(Emitter& e, Decoded& i, const Operand& operand, llvm::Value* value,
                  const ptx::Variable& result) {
  if (operand.kind == Operand::Kind::variable && e.source.variables[operand.index].space == Space::param) {
    Emitter::Storage& storage = e.variable_storage(operand.index);
    if (storage.size < result.size) i.fail("the variable is smaller than the result");
    e.builder.CreateAlignedStore(value, storage.pointer, llvm::Align(1));
    return;
  }
  e.write(operand, e.convert_bits(value, e.module.ir_type(result.type), false), result.type);
}

void call_function(Emitter& e, Decoded& i, llvm::FunctionType* type, llvm::Value* callee,
                   const std::vector<ptx::Variable>& results, const std::vector<ptx::Variable>& parameters,
                   std::span<const Operand> result_operands, std::span<const Operand> arguments) {
  if (arguments.size() != parameters.size()) i.fail("wrong number of arguments");
  if (result_operands.size() > 1) i.fail("functions with several results are not supported");
  // A declaration may promise a result that the definition in another image does not have; the variable keeps
  // its value.
  if (results.empty()) result_operands = {};
  std::vector<llvm::Value*> values{e.thread};
  bool in_memory = !results.empty() && results[0].is_aggregate();
  if (in_memory) {
    if (result_operands.empty()) {
      values.push_back(e.temporary(llvm::ArrayType::get(e.builder.getInt8Ty(), results[0].size)));
    } else {
      ptx::Variable whole = results[0];
      values.push_back(argument(e, i, result_operands[0], whole));
    }
  }
  for (size_t n = 0; n < parameters.size(); ++n)
    values.push_back(argument(e, i, arguments[n], parameters[n]));
  llvm::CallInst* result = e.builder.CreateCall(type, callee, values);
  if (!result_operands.empty() && !in_memory) store_result(e, i, result_operands[0], result, results[0]);
}

void call_builtin(Emitter& e, Decoded& i, const Builtin& builtin, std::span<const Operand> results,
                  std::span<const Operand> arguments) {
  auto variable = [](const Builtin::Value& value) {
    auto made = scalar(value.is_struct ? Type::b8 : value.bytes == 8 ? Type::u64 : Type::u32);
    made.is_array = value.is_struct;
    made.size = value.bytes;
    return made;
  };
  if (arguments.size() != builtin.arguments.size()) i.fail("wrong number of arguments");
  std::vector<llvm::Value*> values{e.thread};
  for (size_t n = 0; n < arguments.size(); ++n)
    values.push_back(argument(e, i, arguments[n], variable(builtin.arguments[n])));
  llvm::Type* type = builtin.result.bytes == 0
                         ? e.builder.getVoidTy()
                         : static_cast<llvm::Type*>(e.builder.getIntNTy(builtin.result.bytes * 8));
  auto* call = llvm::cast<llvm::CallInst>(e.call_runtime(builtin.symbol, type, values));
  if (!builtin.returns) {
    call->getCalledFunction()->addFnAttr(llvm::Attribute::Cold);
    call->getCalledFunction()->addFnAttr(llvm::Attribute::NoReturn);
    e.builder.CreateUnreachable();
  } else if (builtin.result.bytes != 0 && !results.empty()) {
    store_result(e, i, results[0], call, variable(builtin.result));
  }
}

}  // namespace

// call (results), target, (arguments), prototype: every part except the target is optional.
void call(Emitter& e, Decoded& i) {
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
    Symbol symbol = e.module.image.resolve(e.linked.file, target.name);
    if (symbol.kind == Symbol::Kind::builtin)
      return call_builtin(e, i, builtins()[symbol.index], results, arguments);
    if (symbol.kind != Symbol::Kind::function) i.fail("the function is undefined");
    const ptx::Function& callee = *e.module.image.functions[symbol.index].tree;
    if (callee.is_kernel) i.fail("a kernel cannot be called");
    llvm::Function* function = e.module.function(symbol.index);
    call_function(e, i, function->getFunctionType(), function, callee.results, callee.parameters, results,
                  arguments);
    return;
  }
  if (target.kind != Operand::Kind::reg) i.fail("the target is neither a function nor a register");
  if (!prototype || prototype->kind != Operand::Kind::prototype) i.fail("an indirect call needs a prototype");
  const ptx::Prototype& written = e.source.prototypes[prototype->index];
  const auto* results_of = &written.results;
  const auto* parameters_of = &written.parameters;
  if (!written.signature_of.empty()) {
    const Symbol symbol = e.module.image.resolve(e.linked.file, written.signature_of);
    if (symbol.kind != Symbol::Kind::function) i.fail("the first target of the call is not a function");
    results_of = &e.module.image.functions[symbol.index].tree->results;
    parameters_of = &e.module.image.functions[symbol.index].tree->parameters;
  }
  llvm::FunctionType* type = e.module.function_type(*results_of, *parameters_of);
  llvm::GlobalVariable* table = e.module.function_table(*results_of, *parameters_of);

  llvm::Value* address = e.read(target, Type::u64);
  llvm::Value* distance = e.builder.CreateSub(address, e.i64(kFunctionAddressBase));
  static_assert(kFunctionAddressStep == 16);
  llvm::Value* index = e.builder.CreateCall(
      llvm::Intrinsic::getDeclaration(&e.module.module, llvm::Intrinsic::fshr, {e.builder.getInt64Ty()}),
      {distance, distance, e.i64(4)});
  auto *known = e.new_block("known"), *bad = e.new_block("bad"), *good = e.new_block("good");
  e.builder.CreateCondBr(e.builder.CreateICmpULT(index, e.i64(e.module.image.functions.size())), known, bad);
  e.builder.SetInsertPoint(known);
  llvm::Value* entry = e.builder.CreateGEP(llvm::PointerType::get(e.module.context, 0), table, {index});
  llvm::Value* callee = e.builder.CreateLoad(llvm::PointerType::get(e.module.context, 0), entry);
  e.builder.CreateCondBr(e.builder.CreateIsNotNull(callee), good, bad);
  e.builder.SetInsertPoint(bad);
  e.fault(FaultKind::invalid_pc, address);
  e.builder.SetInsertPoint(good);
  call_function(e, i, type, callee, *results_of, *parameters_of, results, arguments);
}

}  // namespace gpupool::softgpu::codegen
