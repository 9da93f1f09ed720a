// Turns LLVM modules into object files, and object files into machine code that can run. Owns the LLJIT of one Program; not
// thread-safe, Program locks around it.
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

  // An object file, which any process with this processor may load; or LLVM's complaint.
  std::variant<std::vector<char>, std::string> compile(llvm::Module& module);
  // `name` must be new. Returns the entries (`has_loop`: of both kinds) or LLVM's complaint.
  std::variant<KernelCode, std::string> load(const std::string& name, std::span<const char> object, bool has_loop);

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace gpupool::softgpu
