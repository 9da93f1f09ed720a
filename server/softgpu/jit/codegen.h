// Generates LLVM IR from linked PTX. Private to jit/.
//
// ModuleCodegen owns the declarations and function tables of one LLVM module; FunctionCodegen
// (codegen_function.h) translates one PTX function. Neither is thread-safe. Code that cannot be translated
// throws CodegenFailure, which generate_kernel() and check_functions() turn into a CompileError; the IR built
// so far is then discarded.
#pragma once
#include <llvm/IR/Module.h>

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/softgpu/jit/link.h"

namespace gpupool::softgpu {

using ptx::Operand;
using ptx::Space;
using ptx::Type;

constexpr const char* kThreadEntryName = "softgpu_thread_entry";
constexpr const char* kLoopEntryName = "softgpu_loop_entry";

class ModuleCodegen {
 public:
  // kernel null: the functions are only checked, and all shared variables get offset 0.
  ModuleCodegen(const Image& image, const LinkedKernel* kernel, llvm::Module& module)
      : image(image), kernel(kernel), module(module), context(module.getContext()) {}

  void generate_function(uint32_t index);
  void generate_entries();  // thread_entry, and loop_entry if `kernel` does not synchronise

  llvm::Function* function(uint32_t index);        // declares it if needed
  llvm::Function* body(uint32_t kernel_function);  // void (thread, block, tid.x, tid.y, tid.z)
  llvm::FunctionType* function_type(const std::vector<ptx::Variable>& results,
                                    const std::vector<ptx::Variable>& parameters);
  // Array of pointers, indexed like Image::functions: null for functions of another signature or whose
  // address is never taken.
  llvm::GlobalVariable* function_table(const std::vector<ptx::Variable>& results,
                                       const std::vector<ptx::Variable>& parameters);
  void finish_tables();
  static void add_common_attributes(llvm::Function* function);
  llvm::Type* int_type(uint32_t bits) { return llvm::IntegerType::get(context, bits); }
  llvm::Type* ir_type(Type type);
  uint32_t shared_offset(uint32_t variable) const;
  // Numbers increase along the code of a function, and from called functions to their callers.
  uint32_t convergence_point(const LinkedFunction& function, uint32_t instruction) const;
  uint32_t static_shared_bytes() const { return kernel ? kernel->info.static_shared_bytes : 0; }

  const Image& image;
  const LinkedKernel* kernel;
  llvm::Module& module;
  llvm::LLVMContext& context;

 private:
  std::unordered_map<uint32_t, llvm::Function*> functions_;
  std::map<std::string, llvm::GlobalVariable*> tables_;  // by signature
};

// Generates the IR of one kernel and of all functions that it reaches.
std::optional<CompileError> generate_kernel(const Image& image, const LinkedKernel& kernel,
                                            llvm::Module& module);
// Translates every function once to find unsupported code. Uses several threads for large images.
std::optional<CompileError> check_functions(const Image& image);

}  // namespace gpupool::softgpu
