// Compiles LLVM modules to object files and loads object files as executable code. Owns the LLJIT of one
// Program. Not thread-safe; Program holds a lock around its calls. Errors are LLVM's messages.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "server/softgpu/exec/abi.h"

namespace llvm {
class Module;
}  // namespace llvm

namespace gpupool::softgpu {

class Engine {
 public:
  static std::variant<std::unique_ptr<Engine>, std::string> create(bool optimise);
  ~Engine();

  // Returns an object file, which any process with the same processor may load, or LLVM's error message.
  std::variant<std::vector<char>, std::string> compile(llvm::Module& module);
  // `name` must be unique. Returns the entry points (has_loop: loop_entry as well) or LLVM's error message.
  std::variant<KernelCode, std::string> load(const std::string& name, std::span<const char> object,
                                             bool has_loop);

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace gpupool::softgpu
