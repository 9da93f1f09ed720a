// Fuzzes the PTX compiler with arbitrary bytes: compile() must return a program or an error, in bounded time
// and memory.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/softgpu/jit/program.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpupool::softgpu;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  // The newest device that there may be, so that no instruction is too new.
  auto result = compile({&text, 1}, CompileOptions{.compute_capability = 130});
  auto* error = std::get_if<CompileError>(&result);
  if (!error) return 0;
  // An internal error means that LLVM rejected the generated IR. A message must be one line.
  if (error->code == CompileErrorCode::internal || error->message.find('\n') != std::string::npos) abort();
  return 0;
}
