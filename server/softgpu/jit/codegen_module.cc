// The declarations shared by an LLVM module, and the generation of all functions of a kernel.
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/raw_ostream.h>

#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>

#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/jit/codegen_function.h"

namespace gpupool::softgpu {
namespace {

// Includes the sizes of arrays: they are passed as pointers, and the callee relies on the whole array being
// present.
std::string signature(const std::vector<ptx::Variable>& results,
                      const std::vector<ptx::Variable>& parameters) {
  std::string text;
  auto add = [&](const ptx::Variable& v) {
    text += v.is_aggregate() ? "a" + std::to_string(v.size) : std::to_string(ptx::bits_of(v.type));
    text += ',';
  };
  for (const auto& v : results) add(v);
  text += ':';
  for (const auto& v : parameters) add(v);
  return text;
}

}  // namespace

void ModuleCodegen::add_common_attributes(llvm::Function* function) {
  function->addFnAttr(llvm::Attribute::NoUnwind);
  // Large frames probe every page, so that they cannot skip a fiber's guard.
  function->addFnAttr("probe-stack", "inline-asm");
}

llvm::Type* ModuleCodegen::ir_type(Type type) {
  if (type == Type::f32) return llvm::Type::getFloatTy(context);
  if (type == Type::f64) return llvm::Type::getDoubleTy(context);
  return int_type(ptx::bits_of(type));
}

uint32_t ModuleCodegen::shared_offset(uint32_t variable) const {
  if (!kernel) return 0;
  auto it = kernel->shared_offsets.find(variable);
  return it == kernel->shared_offsets.end() ? 0 : it->second;
}

uint32_t ModuleCodegen::convergence_point(const LinkedFunction& function, uint32_t instruction) const {
  if (!kernel) return 0;
  uint32_t number = instruction;
  for (auto it = kernel->functions.rbegin(); it != kernel->functions.rend(); ++it) {
    if (&image.functions[*it] == &function) break;
    number += static_cast<uint32_t>(image.functions[*it].tree->code.size());
  }
  return number;
}

llvm::FunctionType* ModuleCodegen::function_type(const std::vector<ptx::Variable>& results,
                                                 const std::vector<ptx::Variable>& parameters) {
  if (results.size() > 1) throw CodegenFailure{"functions with several results are not supported"};
  llvm::Type* pointer = llvm::PointerType::get(context, 0);
  llvm::Type* result = llvm::Type::getVoidTy(context);
  std::vector<llvm::Type*> arguments{pointer};
  if (!results.empty()) {
    if (results[0].is_aggregate())
      arguments.push_back(pointer);
    else
      result = int_type(ptx::bits_of(results[0].type));
  }
  for (const ptx::Variable& v : parameters)
    arguments.push_back(v.is_aggregate() ? pointer : int_type(ptx::bits_of(v.type)));
  return llvm::FunctionType::get(result, arguments, false);
}

llvm::Function* ModuleCodegen::function(uint32_t index) {
  auto [it, fresh] = functions_.emplace(index, nullptr);
  if (!fresh) return it->second;
  const ptx::Function& tree = *image.functions[index].tree;
  if (tree.results.size() > 1)
    throw CodegenFailure{"functions with several results are not supported (" +
                         image.where(image.functions[index], tree.line) + ")"};
  it->second = llvm::Function::Create(function_type(tree.results, tree.parameters),
                                      llvm::Function::InternalLinkage, "f" + std::to_string(index), module);
  add_common_attributes(it->second);
  if (tree.is_noreturn) it->second->addFnAttr(llvm::Attribute::Cold);
  return it->second;
}

llvm::Function* ModuleCodegen::body(uint32_t index) {
  auto [it, fresh] = functions_.emplace(index, nullptr);
  if (!fresh) return it->second;
  llvm::Type* pointer = llvm::PointerType::get(context, 0);
  llvm::Type* number = int_type(32);
  auto* type = llvm::FunctionType::get(llvm::Type::getVoidTy(context),
                                       {pointer, pointer, number, number, number}, false);
  it->second =
      llvm::Function::Create(type, llvm::Function::InternalLinkage, "k" + std::to_string(index), module);
  add_common_attributes(it->second);
  it->second->addFnAttr(llvm::Attribute::AlwaysInline);
  it->second->addDereferenceableParamAttr(0, sizeof(ThreadContext));
  it->second->addDereferenceableParamAttr(1, sizeof(BlockContext));
  return it->second;
}

llvm::GlobalVariable* ModuleCodegen::function_table(const std::vector<ptx::Variable>& results,
                                                    const std::vector<ptx::Variable>& parameters) {
  auto [it, fresh] = tables_.emplace(signature(results, parameters), nullptr);
  if (fresh) {
    auto* array = llvm::ArrayType::get(llvm::PointerType::get(context, 0), image.functions.size());
    it->second = new llvm::GlobalVariable(module, array, true, llvm::GlobalValue::InternalLinkage,
                                          llvm::Constant::getNullValue(array), "functions");
  }
  return it->second;
}

void ModuleCodegen::finish_tables() {
  auto* pointer = llvm::PointerType::get(context, 0);
  for (auto& [wanted, table] : tables_) {
    std::vector<llvm::Constant*> entries(image.functions.size(), llvm::ConstantPointerNull::get(pointer));
    for (uint32_t index : kernel->functions) {
      const LinkedFunction& linked = image.functions[index];
      if (linked.address_taken && !linked.tree->is_kernel &&
          signature(linked.tree->results, linked.tree->parameters) == wanted)
        entries[index] = function(index);
    }
    table->setInitializer(
        llvm::ConstantArray::get(llvm::cast<llvm::ArrayType>(table->getValueType()), entries));
  }
}

void ModuleCodegen::generate_function(uint32_t index) {
  FunctionCodegen(*this, index).run();
}

std::optional<CompileError> generate_kernel(const Image& image, const LinkedKernel& kernel,
                                            llvm::Module& module) {
  try {
    ModuleCodegen codegen(image, &kernel, module);
    for (uint32_t index : kernel.functions) codegen.generate_function(index);
    codegen.generate_entries();
    codegen.finish_tables();
  } catch (const CodegenFailure& failure) {
    return CompileError{CompileErrorCode::invalid_ptx, failure.message};
  }
  return std::nullopt;
}

namespace {

std::optional<CompileError> check_function(ModuleCodegen& codegen, uint32_t index) {
  const LinkedFunction& linked = codegen.image.functions[index];
  try {
    codegen.generate_function(index);
  } catch (const CodegenFailure& failure) {
    return CompileError{CompileErrorCode::invalid_ptx, failure.message};
  }
  llvm::Function* function = linked.tree->is_kernel ? codegen.body(index) : codegen.function(index);
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  if (llvm::verifyFunction(*function, &stream)) {
    stream.flush();
    return CompileError{CompileErrorCode::internal, "internal error: invalid code generated for function " +
                                                        std::string(linked.tree->name) + ": " +
                                                        problem.substr(0, problem.find('\n'))};
  }
  function->deleteBody();
  function->setLinkage(llvm::GlobalValue::InternalLinkage);
  return std::nullopt;
}

// Several threads take functions in turn; the error of the first failing function in the text is reported.
class ParallelCheck {
 public:
  explicit ParallelCheck(const Image& image)
      : image_(image), first_bad_(static_cast<uint32_t>(image.functions.size())) {}

  void work() {
    llvm::LLVMContext context;
    llvm::Module module("check", context);
    ModuleCodegen codegen(image_, nullptr, module);
    for (;;) {
      const uint32_t index = next_.fetch_add(1);
      if (index >= first_bad_.load()) return;
      auto error = check_function(codegen, index);
      if (!error) continue;
      std::lock_guard guard(mutex_);
      if (index < first_bad_.load()) {
        first_bad_.store(index);
        error_ = std::move(error);
      }
      return;  // this module contains an incomplete function
    }
  }
  std::optional<CompileError> error() { return std::move(error_); }

 private:
  const Image& image_;
  std::atomic<uint32_t> next_{0};
  std::atomic<uint32_t> first_bad_;
  std::mutex mutex_;  // guards error_
  std::optional<CompileError> error_;
};

}  // namespace

std::optional<CompileError> check_functions(const Image& image) {
  constexpr size_t kFunctionsPerThread = 32;  // functions per additional thread
  ParallelCheck checks(image);
  const size_t most =
      std::min<size_t>(std::thread::hardware_concurrency(), image.functions.size() / kFunctionsPerThread);
  std::vector<std::thread> others;
  try {
    while (others.size() + 1 < most) others.emplace_back([&] { checks.work(); });
  } catch (const std::system_error&) {  // no more threads: the existing ones do the work
  }
  checks.work();
  for (std::thread& other : others) other.join();
  return checks.error();
}

}  // namespace gpupool::softgpu
