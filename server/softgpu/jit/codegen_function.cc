// The frame of a translated function: arguments, storage, basic blocks, guards, and the dispatch of
// instructions.
#include <algorithm>

#include "server/softgpu/jit/codegen.h"

namespace gpupool::softgpu {
namespace {

struct ArchitectureRow {
  std::string_view opcode, where;
};
// Unsupported instructions that need particular GPUs; the error names those.
constexpr ArchitectureRow kOneArchitecture[] = {
    {"wgmma", "9.0"}, {"tcgen05", "10.x"}, {"multimem", "9.0 and later that are connected by NVSwitch"}};

}  // namespace

FunctionCodegen::FunctionCodegen(ModuleCodegen& module, uint32_t index)
    : m_(module),
      linked_(module.image.functions[index]),
      f_(*linked_.tree),
      facts_(linked_.facts),
      function_(f_.is_kernel ? module.body(index) : module.function(index)),
      b_(module.context),
      entry_(module.context) {
  registers_.resize(f_.registers.size());
  base_offsets_.resize(f_.registers.size());
}

llvm::BasicBlock* FunctionCodegen::new_block(const char* name) {
  return llvm::BasicBlock::Create(m_.context, name, function_);
}

void FunctionCodegen::start_block(llvm::BasicBlock* block) {
  if (b_.GetInsertBlock() && !b_.GetInsertBlock()->getTerminator()) b_.CreateBr(block);
  b_.SetInsertPoint(block);
}

// Returns memory that is valid during the current instruction. Instructions share it: a loop unrolled into
// thousands of matrix products must not get thousands of arrays in its frame.
llvm::AllocaInst* FunctionCodegen::temporary(llvm::Type* type) {
  Temporaries& own = temporaries_[type];
  if (own.instruction != index_) own = {std::move(own.memory), 0, index_};
  if (own.used == own.memory.size()) own.memory.push_back(entry_.CreateAlloca(type));
  return own.memory[own.used++];
}

void FunctionCodegen::run() {
  auto* entry = new_block("entry");
  auto* start = new_block("start");
  llvm::BranchInst* jump = llvm::BranchInst::Create(start, entry);
  entry_.SetInsertPoint(jump);
  b_.SetInsertPoint(start);
  try {
    prepare_arguments();
  } catch (const CodegenFailure& failure) {
    throw CodegenFailure{failure.message + " (" + m_.image.where(linked_, f_.line) + ")"};
  }
  prepare_blocks();
  std::vector<llvm::BasicBlock*> block_at(f_.code.size() + 1);
  for (size_t label = 0; label < f_.labels.size(); ++label) {
    auto*& block = block_at[f_.labels[label]];
    if (!block) block = new_block("label");
    label_blocks_.push_back(block);
  }
  for (index_ = 0; index_ < f_.code.size(); ++index_) {
    if (block_at[index_])
      start_block(block_at[index_]);
    else if (b_.GetInsertBlock()->getTerminator())
      b_.SetInsertPoint(new_block("dead"));
    generate_instruction(index_);
  }
  if (block_at[f_.code.size()]) start_block(block_at[f_.code.size()]);
  if (!b_.GetInsertBlock()->getTerminator()) return_from_function();
}

void FunctionCodegen::prepare_blocks() {
  label_blocks_.reserve(f_.labels.size());
}

void FunctionCodegen::prepare_arguments() {
  thread_ = function_->getArg(0);
  if (f_.is_kernel) {
    block_ = function_->getArg(1);
    for (unsigned d = 0; d < 3; ++d) tid_[d] = function_->getArg(2 + d);
    uint64_t offset = 0;
    if (!f_.parameters.empty()) {
      parameter_base_ = entry_.CreateIntToPtr(block_field(offsetof(BlockContext, params), b_.getInt64Ty()),
                                              llvm::PointerType::get(m_.context, 0));
    }
    for (uint32_t v = 0; v < f_.parameters.size(); ++v) {
      const ptx::Variable& parameter = f_.parameters[v];
      offset = (offset + parameter.alignment - 1) & ~uint64_t{parameter.alignment - 1};
      storage_[v] = {entry_.CreateConstGEP1_64(b_.getInt8Ty(), parameter_base_, offset), parameter.size};
      offset += parameter.size;
    }
    return;
  }
  block_ =
      entry_.CreateLoad(llvm::PointerType::get(m_.context, 0),
                        entry_.CreateConstGEP1_64(b_.getInt8Ty(), thread_, offsetof(ThreadContext, block)));
  unsigned argument = 1;
  uint32_t variable = 0;
  for (const ptx::Variable& result : f_.results) {
    if (result.is_aggregate()) {
      result_pointer_ = function_->getArg(argument++);
      storage_[variable] = {result_pointer_, result.size};
    }
    ++variable;
  }
  for (const ptx::Variable& parameter : f_.parameters) {
    llvm::Value* value = function_->getArg(argument++);
    if (parameter.space == Space::reg) {
      Operand target;
      target.kind = Operand::Kind::reg;
      target.index = f_.variables[variable].reg;
      write(target, value, parameter.type == Type::pred ? Type::pred : parameter.type);
    } else if (parameter.is_aggregate()) {
      storage_[variable] = {value, parameter.size};
    } else {
      b_.CreateStore(value, variable_storage(variable).pointer);
    }
    ++variable;
  }
}

// Memory of local variables and parameters is allocated at their first use.
FunctionCodegen::Storage& FunctionCodegen::variable_storage(uint32_t variable) {
  auto [it, fresh] = storage_.emplace(variable, Storage{});
  if (fresh) {
    const ptx::Variable& v = f_.variables[variable];
    llvm::AllocaInst* memory = entry_.CreateAlloca(llvm::ArrayType::get(b_.getInt8Ty(), v.size));
    memory->setAlignment(llvm::Align(std::max<uint32_t>(v.alignment, 1)));
    it->second = {memory, v.size};
  }
  return it->second;
}

void FunctionCodegen::return_from_function() {
  if (f_.is_kernel || f_.results.empty() || f_.results[0].is_aggregate()) {
    b_.CreateRetVoid();
    return;
  }
  const ptx::Variable& result = f_.variables[0];
  llvm::Type* type = m_.int_type(ptx::bits_of(result.type));
  llvm::Value* value;
  if (result.space == Space::reg) {
    value = convert_bits(read_register(result.reg, result.type), type, false);
  } else {
    value = b_.CreateFreeze(b_.CreateAlignedLoad(type, variable_storage(0).pointer, llvm::Align(1)));
  }
  b_.CreateRet(value);
}

llvm::Value* FunctionCodegen::value_of_guard(const ptx::Instruction& i) {
  llvm::Value* guard = read_register(i.predicate, Type::pred);
  return i.predicate_negated ? b_.CreateNot(guard) : guard;
}

void FunctionCodegen::generate_instruction(uint32_t index) {
  const ptx::Instruction& instruction = f_.code[index];
  Decoded decoded(f_, instruction);
  try {
    if (!facts_.converges.empty() && facts_.converges[index])
      call_runtime("softgpu_converge", b_.getVoidTy(), {thread_, i32(m_.convergence_point(linked_, index))});
    if (!instruction.is_predicated || instruction.opcode == "bra") return dispatch(decoded);
    auto* yes = new_block("guarded");
    auto* after = new_block("after");
    b_.CreateCondBr(value_of_guard(instruction), yes, after);
    b_.SetInsertPoint(yes);
    dispatch(decoded);
    start_block(after);
  } catch (const CodegenFailure& failure) {
    std::string text(instruction.text.substr(0, 200));
    for (char& c : text)
      if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = ' ';
    throw CodegenFailure{"unsupported instruction '" + text + "': " + failure.message + " (" +
                         m_.image.where(linked_, instruction.line) + ")"};
  }
}

void FunctionCodegen::dispatch(Decoded& i) {
  Handler handler = find_handler(i.opcode());
  if (handler) return (this->*handler)(i);
  for (const ArchitectureRow& row : kOneArchitecture)
    if (row.opcode == i.opcode())
      i.fail("it exists only on GPUs of compute capability " + std::string(row.where) +
             "; compile for compute_80 or compute_90 (without suffix), whose matrix instructions are mma and "
             "wmma");
  i.fail("unknown instruction");
}

FunctionCodegen::Handler FunctionCodegen::find_handler(std::string_view opcode) {
  using F = FunctionCodegen;
  static const std::unordered_map<std::string_view, Handler> kHandlers = {
      // Control flow
      {"bra", &F::bra},
      {"brx", &F::brx},
      {"ret", &F::ret},
      {"exit", &F::exit},
      {"trap", &F::trap},
      {"call", &F::call},
      {"brkpt", &F::nothing},
      {"pmevent", &F::nothing},
      {"prefetch", &F::nothing},
      {"prefetchu", &F::nothing},
      {"discard", &F::nothing},
      {"applypriority", &F::nothing},
      {"griddepcontrol", &F::nothing},
      {"setmaxnreg", &F::nothing},
      // Memory
      {"ld", &F::ld},
      {"ldu", &F::ld},
      {"st", &F::st},
      {"mov", &F::mov},
      {"cvta", &F::cvta},
      {"isspacep", &F::isspacep},
      {"cp", &F::cp},
      {"atom", &F::atom},
      {"red", &F::red},
      {"membar", &F::membar},
      {"fence", &F::fence},
      // Textures and surfaces
      {"tex", &F::tex},
      {"tld4", &F::tld4},
      {"txq", &F::texture_query},
      {"suq", &F::texture_query},
      {"suld", &F::suld},
      {"sust", &F::sust},
      {"sured", &F::sured},
      {"istypep", &F::istypep},
      // Integers
      {"add", &F::add},
      {"sub", &F::sub},
      {"addc", &F::add_with_carry},
      {"subc", &F::add_with_carry},
      {"mul", &F::mul},
      {"mad", &F::mad},
      {"madc", &F::mad},
      {"mul24", &F::mul24},
      {"mad24", &F::mul24},
      {"sad", &F::sad},
      {"div", &F::div},
      {"rem", &F::rem},
      {"abs", &F::abs},
      {"neg", &F::neg},
      {"min", &F::min_max},
      {"max", &F::min_max},
      {"dp4a", &F::dp},
      {"dp2a", &F::dp},
      {"and", &F::logic},
      {"or", &F::logic},
      {"xor", &F::logic},
      {"not", &F::lnot},
      {"cnot", &F::cnot},
      {"lop3", &F::lop3},
      {"shl", &F::shift},
      {"shr", &F::shift},
      {"shf", &F::shf},
      {"prmt", &F::prmt},
      {"bfe", &F::bfe},
      {"bfi", &F::bfi},
      {"bmsk", &F::bmsk},
      {"szext", &F::szext},
      {"popc", &F::bit_count},
      {"clz", &F::bit_count},
      {"brev", &F::bit_count},
      {"bfind", &F::bfind},
      {"fns", &F::fns},
      {"vadd", &F::video},
      {"vsub", &F::video},
      {"vabsdiff", &F::video},
      {"vmin", &F::video},
      {"vmax", &F::video},
      {"vshl", &F::video},
      {"vshr", &F::video},
      {"vmad", &F::video},
      {"vset", &F::video},
      {"vadd2", &F::video_lanes},
      {"vadd4", &F::video_lanes},
      {"vsub2", &F::video_lanes},
      {"vsub4", &F::video_lanes},
      {"vavrg2", &F::video_lanes},
      {"vavrg4", &F::video_lanes},
      {"vabsdiff2", &F::video_lanes},
      {"vabsdiff4", &F::video_lanes},
      {"vmin2", &F::video_lanes},
      {"vmin4", &F::video_lanes},
      {"vmax2", &F::video_lanes},
      {"vmax4", &F::video_lanes},
      {"vset2", &F::video_lanes},
      {"vset4", &F::video_lanes},
      // Floating point
      {"fma", &F::fma},
      {"rcp", &F::float_unary},
      {"sqrt", &F::float_unary},
      {"rsqrt", &F::float_unary},
      {"sin", &F::float_unary},
      {"cos", &F::float_unary},
      {"lg2", &F::float_unary},
      {"ex2", &F::float_unary},
      {"tanh", &F::float_unary},
      {"testp", &F::testp},
      {"copysign", &F::copysign},
      {"cvt", &F::cvt},
      // Comparisons
      {"setp", &F::setp},
      {"set", &F::set},
      {"selp", &F::selp},
      {"slct", &F::slct},
      // Between threads
      {"bar", &F::bar},
      {"barrier", &F::bar},
      {"vote", &F::vote},
      {"match", &F::match},
      {"shfl", &F::shfl},
      {"redux", &F::redux},
      {"elect", &F::elect},
      {"activemask", &F::activemask},
      {"nanosleep", &F::nanosleep},
      {"mbarrier", &F::mbarrier},
      {"tensormap", &F::tensormap},
      {"mapa", &F::mapa},
      {"clusterlaunchcontrol", &F::clusterlaunchcontrol},
      {"getctarank", &F::getctarank},
      {"mma", &F::mma},
      {"wmma", &F::wmma},
      {"ldmatrix", &F::move_matrix},
      {"stmatrix", &F::move_matrix},
      {"movmatrix", &F::movmatrix},
      // Caches and stacks
      {"createpolicy", &F::createpolicy},
      {"alloca", &F::alloca_},
      {"stacksave", &F::stacksave},
      {"stackrestore", &F::stackrestore},
  };
  auto it = kHandlers.find(opcode);
  return it == kHandlers.end() ? nullptr : it->second;
}

}  // namespace gpupool::softgpu
