// Translates one PTX function to LLVM IR: its frame, and its instructions in order (instructions.h). Private
// to jit/; not thread-safe. Throws CodegenFailure for code that cannot be translated; the IR built so far is
// then to be discarded.
#pragma once
#include "server/softgpu/jit/emitter.h"

namespace gpupool::softgpu {

class FunctionCodegen {
 public:
  FunctionCodegen(ModuleCodegen& module, uint32_t index) : e_(module, index) {}
  void run();

 private:
  void prepare_blocks();
  void prepare_arguments();
  void generate_instruction(uint32_t index);
  void dispatch(Decoded& i);

  Emitter e_;
};

}  // namespace gpupool::softgpu
