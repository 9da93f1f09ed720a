// Reads and writes operands: registers, constants, special registers and addresses of symbols.
#include "server/softgpu/jit/emitter.h"

#include <bit>

namespace gpupool::softgpu {
namespace {

struct SpecialRow {
  std::string_view name;
  uint64_t value;
};
// Special registers with a constant value. softgpu presents itself as one multiprocessor.
constexpr SpecialRow kConstants[] = {
    {"%nsmid", 1},
    {"%smid", 0},
    {"%lanemask_all", 0xFFFFFFFF},
    {"%current_graph_exec", 0},
};

}  // namespace

Emitter::Emitter(ModuleCodegen& module, uint32_t index)
    : module(module),
      linked(module.image.functions[index]),
      source(*linked.tree),
      facts(linked.facts),
      function(source.is_kernel ? module.body(index) : module.function(index)),
      builder(module.context),
      entry_builder(module.context) {
  registers_.resize(source.registers.size());
  base_offsets.resize(source.registers.size());
}

// Converts the bits of any scalar to the integer or floating-point type `to`, truncated or extended.
llvm::Value* Emitter::convert_bits(llvm::Value* value, llvm::Type* to, bool sign_extend) {
  llvm::Type* from = value->getType();
  if (from == to) return value;
  unsigned from_bits = from->getPrimitiveSizeInBits(), to_bits = to->getPrimitiveSizeInBits();
  if (!from->isIntegerTy()) value = builder.CreateBitCast(value, module.int_type(from_bits));
  if (from_bits > to_bits)
    value = builder.CreateTrunc(value, module.int_type(to_bits));
  else if (from_bits < to_bits)
    value = sign_extend ? builder.CreateSExt(value, module.int_type(to_bits))
                        : builder.CreateZExt(value, module.int_type(to_bits));
  return to->isIntegerTy() ? value : builder.CreateBitCast(value, to);
}

llvm::Value* Emitter::read_register(uint32_t reg, Type type) {
  Type declared = source.registers[reg].type;
  if ((declared == Type::pred) != (type == Type::pred))
    throw CodegenFailure{type == Type::pred ? "expected a predicate" : "a predicate is used as a number"};
  llvm::AllocaInst*& memory = registers_[reg];
  if (!memory) {
    llvm::Type* ir = module.ir_type(declared);
    memory = entry_builder.CreateAlloca(ir);
    entry_builder.CreateStore(llvm::Constant::getNullValue(ir), memory);  // no undefined values reach LLVM
  }
  llvm::Value* value = builder.CreateLoad(memory->getAllocatedType(), memory);
  return convert_bits(value, module.ir_type(type), ptx::is_signed(declared));
}

llvm::Value* Emitter::read(const Operand& operand, Type type) {
  llvm::Type* ir = module.ir_type(type);
  switch (operand.kind) {
    case Operand::Kind::reg: {
      if (!operand.part.empty() || operand.is_minus)
        throw CodegenFailure{
            "parts of registers and negated registers are supported only in video instructions"};
      if (operand.negated && type != Type::pred) throw CodegenFailure{"only predicates can be negated"};
      llvm::Value* value = read_register(operand.index, type);
      return operand.negated ? builder.CreateNot(value) : value;
    }
    case Operand::Kind::integer:
      if (type == Type::pred) return builder.getInt1(operand.value != 0);
      if (type == Type::f32 || type == Type::f64)
        return llvm::ConstantFP::get(ir, static_cast<double>(operand.value));
      return llvm::ConstantInt::get(ir, static_cast<uint64_t>(operand.value), true);
    case Operand::Kind::real: {
      uint64_t bits = static_cast<uint64_t>(operand.value);
      uint32_t width = ptx::bits_of(type);
      if (width < 32 || width > 64) throw CodegenFailure{"a floating-point constant does not fit here"};
      if (operand.is_single && width == 64 && ptx::is_float(type))
        bits =
            std::bit_cast<uint64_t>(static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits))));
      if (!operand.is_single && width == 32) {
        bits = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
      }
      return convert_bits(llvm::ConstantInt::get(module.int_type(width), bits), ir, false);
    }
    case Operand::Kind::special: return read_special(operand, type);
    case Operand::Kind::variable:
    case Operand::Kind::symbol:
      if (type == Type::pred) throw CodegenFailure{"expected a predicate"};
      return convert_bits(symbol_address(operand), ir, false);
    default: throw CodegenFailure{"an operand of this kind is not expected here"};
  }
}

llvm::Value* Emitter::read_predicate(const Operand& operand) {
  return read(operand, Type::pred);
}

void Emitter::write(const Operand& operand, llvm::Value* value, Type type) {
  if (operand.kind == Operand::Kind::sink) return;
  if (operand.kind != Operand::Kind::reg) throw CodegenFailure{"the destination is not a register"};
  if (!operand.part.empty() || operand.is_minus)
    throw CodegenFailure{"part of a register cannot be a destination here"};
  Type declared = source.registers[operand.index].type;
  if ((declared == Type::pred) != (type == Type::pred))
    throw CodegenFailure{type == Type::pred ? "the destination is not a predicate"
                                            : "the destination is a predicate"};
  llvm::AllocaInst*& memory = registers_[operand.index];
  llvm::Type* ir = module.ir_type(declared);
  if (!memory) {
    memory = entry_builder.CreateAlloca(ir);
    entry_builder.CreateStore(llvm::Constant::getNullValue(ir), memory);
  }
  builder.CreateStore(convert_bits(value, ir, ptx::is_signed(type)), memory);
}

std::pair<const Operand*, const Operand*> Emitter::split_pair(Decoded& i, const Operand& operand) {
  if (operand.kind != Operand::Kind::pair) return {&operand, nullptr};
  auto elements = i.elements(operand);
  return {&elements[0], &elements[1]};
}

// --- Context fields ---

// Fields of the BlockContext do not change while the block runs, so each is loaded once at the start of the
// function.
llvm::Value* Emitter::block_field(uint32_t offset, llvm::Type* type, uint64_t limit) {
  llvm::Value*& value = fields_[offset];
  if (!value) {
    auto* load =
        entry_builder.CreateLoad(type, entry_builder.CreateConstGEP1_64(builder.getInt8Ty(), block, offset));
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(module.context, {}));
    value = limit ? dimension_range(load, 0, limit) : load;
  }
  return value;
}

llvm::Value* Emitter::dimension_range(llvm::LoadInst* load, uint64_t low, uint64_t high) {
  auto* type = llvm::cast<llvm::IntegerType>(load->getType());
  llvm::Metadata* bounds[] = {llvm::ConstantAsMetadata::get(llvm::ConstantInt::get(type, low)),
                              llvm::ConstantAsMetadata::get(llvm::ConstantInt::get(type, high))};
  load->setMetadata(llvm::LLVMContext::MD_range, llvm::MDNode::get(module.context, bounds));
  return load;
}

llvm::Value* Emitter::thread_field(uint32_t offset, uint64_t limit) {
  uint64_t key = uint64_t{1} << 32 | offset;
  llvm::Value*& value = fields_[key];
  if (!value) {
    auto* load = entry_builder.CreateLoad(
        builder.getInt32Ty(), entry_builder.CreateConstGEP1_64(builder.getInt8Ty(), thread, offset));
    value = dimension_range(load, 0, limit);
  }
  return value;
}

llvm::Value* Emitter::special_32(std::string_view name, char component) {
  int axis = component == 'x' || component == 0 ? 0 : component == 'y' ? 1 : component == 'z' ? 2 : 3;
  llvm::Type* number = builder.getInt32Ty();
  auto vector = [&](uint32_t offset, uint64_t low, uint64_t high) -> llvm::Value* {
    if (axis == 3) return i32(0);
    uint32_t at = offset + 4 * static_cast<uint32_t>(axis);
    llvm::Value* value = block_field(at, number);
    if (auto* load = llvm::dyn_cast<llvm::LoadInst>(value)) dimension_range(load, low, high);
    return value;
  };
  if (name == "%tid") {
    if (axis == 3) return i32(0);
    if (tid[axis]) return tid[axis];
    return thread_field(offsetof(ThreadContext, tid) + 4 * static_cast<uint32_t>(axis), kMaxThreadsPerBlock);
  }
  if (name == "%ntid") return vector(offsetof(BlockContext, block_dim), 1, kMaxThreadsPerBlock + 1);
  if (name == "%ctaid") return vector(offsetof(BlockContext, block_idx), 0, 1ull << 31);
  if (name == "%nctaid") return vector(offsetof(BlockContext, grid_dim), 1, 1ull << 31);
  if (name == "%cluster_nctaid") {
    if (axis == 3) return i32(1);
    return vector(offsetof(BlockContext, cluster_dim), 1, kMaxClusterBlocks + 1);
  }
  if (name == "%cluster_ctaid") return vector(offsetof(BlockContext, cluster_idx), 0, kMaxClusterBlocks);
  if (name == "%clusterid" || name == "%nclusterid")
    return builder.CreateUDiv(special_32(name == "%clusterid" ? "%ctaid" : "%nctaid", component),
                              special_32("%cluster_nctaid", component));
  if (name == "%cluster_ctarank")
    return block_field(offsetof(BlockContext, cluster_rank), number, kMaxClusterBlocks);
  if (name == "%cluster_nctarank")
    return builder.CreateMul(
        builder.CreateMul(special_32("%cluster_nctaid", 'x'), special_32("%cluster_nctaid", 'y')),
        special_32("%cluster_nctaid", 'z'));
  // The upper and the lower half of the address of the grid's barrier.
  if (name == "%envreg1" || name == "%envreg2") {
    llvm::Value* address = block_field(offsetof(BlockContext, grid_workspace), builder.getInt64Ty());
    return builder.CreateTrunc(name == "%envreg1" ? builder.CreateLShr(address, 32) : address, number);
  }
  auto warps = [&] {
    llvm::Value* threads = builder.CreateMul(
        builder.CreateMul(special_32("%ntid", 'x'), special_32("%ntid", 'y')), special_32("%ntid", 'z'));
    return builder.CreateLShr(builder.CreateAdd(threads, i32(kWarpSize - 1)), i32(5));
  };
  auto lane = [&] { return thread_field(offsetof(ThreadContext, lane), kWarpSize); };
  if (name == "%laneid") return lane();
  if (name == "%warpid") return thread_field(offsetof(ThreadContext, warp), kMaxThreadsPerBlock / kWarpSize);
  if (name == "%nwarpid") return warps();
  if (name == "%lanemask_eq") return builder.CreateShl(i32(1), lane());
  if (name == "%lanemask_lt") return builder.CreateSub(builder.CreateShl(i32(1), lane()), i32(1));
  if (name == "%lanemask_le") return builder.CreateSub(builder.CreateShl(i32(2), lane()), i32(1));
  if (name == "%lanemask_gt") return builder.CreateNeg(builder.CreateShl(i32(2), lane()));
  if (name == "%lanemask_ge") return builder.CreateNeg(builder.CreateShl(i32(1), lane()));
  if (name == "%dynamic_smem_size") return block_field(offsetof(BlockContext, dynamic_shared_bytes), number);
  if (name == "%total_smem_size" || name == "%aggr_smem_size")
    return block_field(offsetof(BlockContext, total_shared_bytes), number);
  if (name.substr(0, 22) == "%reserved_smem_offset_") {
    bool end = name == "%reserved_smem_offset_end" || name == "%reserved_smem_offset_cap";
    return i32((module.kernel ? module.kernel->reserved_shared : 0) + (end ? kReservedSharedBytes : 0));
  }
  if (name.substr(0, 6) == "%envre") return i32(0);
  if (name.substr(0, 3) == "%pm") return i32(0);
  for (const SpecialRow& row : kConstants)
    if (row.name == name) return i32(static_cast<uint32_t>(row.value));
  return nullptr;
}

llvm::Value* Emitter::special_64(std::string_view name) {
  llvm::Type* word = builder.getInt64Ty();
  if (name == "%clock64" || name == "%clock" || name == "%clock_hi")
    return call_runtime("softgpu_clock64", word, {thread});
  if (name.substr(0, 12) == "%globaltimer") return call_runtime("softgpu_global_timer", word, {thread});
  if (name == "%gridid") return block_field(offsetof(BlockContext, grid_id), word);
  return nullptr;
}

llvm::Value* Emitter::read_special(const Operand& operand, Type type) {
  if (operand.name == "%is_explicit_cluster") {
    llvm::Value* has = block_field(offsetof(BlockContext, has_cluster), builder.getInt32Ty());
    llvm::Value* bit = builder.CreateICmpNE(has, i32(0));
    return type == Type::pred ? bit : convert_bits(bit, module.ir_type(type), false);
  }
  if (type == Type::pred) throw CodegenFailure{"expected a predicate"};
  llvm::Value* value = special_64(operand.name);
  if (value && (operand.name == "%clock_hi" || operand.name == "%globaltimer_hi"))
    value = builder.CreateLShr(value, i64(32));
  if (!value) value = special_32(operand.name, operand.component);
  if (!value)
    throw CodegenFailure{"'" + std::string(operand.name.substr(0, 100)) +
                         "' is not a declared or special register"};
  return convert_bits(value, module.ir_type(type), false);
}

// --- Addresses ---

llvm::Value* Emitter::variable_address(uint32_t variable) {
  if (auto it = linked.variables.find(variable); it != linked.variables.end())
    return linked_address(it->second, source.variables[variable].name);
  return builder.CreatePtrToInt(variable_storage(variable).pointer, builder.getInt64Ty());
}

llvm::Value* Emitter::function_address(uint32_t index) {
  return i64(kFunctionAddressBase + kFunctionAddressStep * index);
}

// Returns an offset in the window for shared variables, else a generic address.
llvm::Value* Emitter::linked_address(Symbol symbol, std::string_view name) {
  switch (symbol.kind) {
    case Symbol::Kind::shared: return i64(module.shared_offset(symbol.index));
    case Symbol::Kind::data:
      return builder.CreateAdd(block_field(offsetof(BlockContext, module_data), builder.getInt64Ty()),
                               i64(module.image.data[symbol.index].offset));
    case Symbol::Kind::function: return function_address(symbol.index);
    default: throw CodegenFailure{"'" + std::string(name.substr(0, 200)) + "' is undefined"};
  }
}

llvm::Value* Emitter::symbol_address(const Operand& operand) {
  llvm::Value* address = operand.kind == Operand::Kind::variable
                             ? variable_address(operand.index)
                             : linked_address(module.image.resolve(linked.file, operand.name), operand.name);
  return operand.value ? builder.CreateAdd(address, i64(static_cast<uint64_t>(operand.value))) : address;
}

// --- Calls into the runtime ---

llvm::Value* Emitter::call_runtime(const char* name, llvm::Type* result,
                                   llvm::ArrayRef<llvm::Value*> arguments) {
  llvm::Function* callee = module.module.getFunction(name);
  if (!callee) {
    std::vector<llvm::Type*> types;
    for (llvm::Value* argument : arguments) types.push_back(argument->getType());
    callee = llvm::Function::Create(llvm::FunctionType::get(result, types, false),
                                    llvm::Function::ExternalLinkage, name, module.module);
    callee->addFnAttr(llvm::Attribute::NoUnwind);
  }
  return builder.CreateCall(callee, arguments);
}

// Calls a function that depends on its arguments alone: LLVM may remove, merge and move the calls.
llvm::Value* Emitter::call_pure(const char* name, llvm::Type* result,
                                std::initializer_list<llvm::Value*> arguments) {
  llvm::Value* value = call_runtime(name, result, arguments);
  auto* callee = llvm::cast<llvm::CallInst>(value)->getCalledFunction();
  callee->setDoesNotAccessMemory();
  callee->addFnAttr(llvm::Attribute::WillReturn);
  return value;
}

llvm::Value* Emitter::intrinsic(llvm::Intrinsic::ID id, std::initializer_list<llvm::Value*> arguments) {
  std::vector<llvm::Value*> values(arguments);
  return builder.CreateIntrinsic(id, {values[0]->getType()}, values);
}

void Emitter::fault(FaultKind kind, llvm::Value* address) {
  auto* call = llvm::cast<llvm::CallInst>(call_runtime("softgpu_fault", builder.getVoidTy(),
                                                       {thread, i32(static_cast<uint32_t>(kind)), address}));
  call->getCalledFunction()->addFnAttr(llvm::Attribute::Cold);
  call->getCalledFunction()->addFnAttr(llvm::Attribute::NoReturn);
  builder.CreateUnreachable();
}

llvm::BasicBlock* Emitter::new_block(const char* name) {
  return llvm::BasicBlock::Create(module.context, name, function);
}

void Emitter::start_block(llvm::BasicBlock* block) {
  if (builder.GetInsertBlock() && !builder.GetInsertBlock()->getTerminator()) builder.CreateBr(block);
  builder.SetInsertPoint(block);
}

// Returns memory that is valid during the current instruction. Instructions share it: a loop unrolled into
// thousands of matrix products must not get thousands of arrays in its frame.
llvm::AllocaInst* Emitter::temporary(llvm::Type* type) {
  Temporaries& own = temporaries_[type];
  if (own.instruction != index) own = {std::move(own.memory), 0, index};
  if (own.used == own.memory.size()) own.memory.push_back(entry_builder.CreateAlloca(type));
  return own.memory[own.used++];
}

// Memory of local variables and parameters is allocated at their first use.
Emitter::Storage& Emitter::variable_storage(uint32_t variable) {
  auto [it, fresh] = storage.emplace(variable, Storage{});
  if (fresh) {
    const ptx::Variable& v = source.variables[variable];
    llvm::AllocaInst* memory = entry_builder.CreateAlloca(llvm::ArrayType::get(builder.getInt8Ty(), v.size));
    memory->setAlignment(llvm::Align(std::max<uint32_t>(v.alignment, 1)));
    it->second = {memory, v.size};
  }
  return it->second;
}

void Emitter::return_from_function() {
  if (source.is_kernel || source.results.empty() || source.results[0].is_aggregate()) {
    builder.CreateRetVoid();
    return;
  }
  const ptx::Variable& result = source.variables[0];
  llvm::Type* type = module.int_type(ptx::bits_of(result.type));
  llvm::Value* value;
  if (result.space == Space::reg) {
    value = convert_bits(read_register(result.reg, result.type), type, false);
  } else {
    value =
        builder.CreateFreeze(builder.CreateAlignedLoad(type, variable_storage(0).pointer, llvm::Align(1)));
  }
  builder.CreateRet(value);
}

llvm::Value* Emitter::value_of_guard(const ptx::Instruction& i) {
  llvm::Value* guard = read_register(i.predicate, Type::pred);
  return i.predicate_negated ? builder.CreateNot(guard) : guard;
}

llvm::Value* Emitter::select_min(llvm::Value* a, llvm::Value* b, bool is_signed) {
  return builder.CreateSelect(is_signed ? builder.CreateICmpSLT(a, b) : builder.CreateICmpULT(a, b), a, b);
}

}  // namespace gpupool::softgpu
