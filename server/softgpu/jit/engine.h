// Turns one LLVM module into machine code. Owns the LLJIT of one Program; not thread-safe, Program locks
// around it.
#pragma once
#include <memory>
#include <string>
#include <variant>

#include "server/softgpu/exec/abi.h"

namespace llvm {
class LLVMContext;
class Module;
}  // namespace llvm

namespace gpupool::softgpu {

class Engine {
 public:
  static std::variant<std::unique_ptr<Engine>, std::string> create(bool optimise);
  ~Engine();

  // `name` must be new. Takes the module and its context. Returns the entries or LLVM's complaint.
  std::variant<KernelCode, std::string> compile(const std::string& name,
                                                std::unique_ptr<llvm::LLVMContext> context,
                                                std::unique_ptr<llvm::Module> module);

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace gpupool::softgpu
