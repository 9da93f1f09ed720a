// Parses one PTX file into a syntax tree. Used by jit/'s linker and by tests; thread-safe, as parse() has no
// shared state.
#pragma once
#include <string>
#include <string_view>
#include <variant>

#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu::ptx {

struct SyntaxError {
  std::string message;  // one line, without position
  uint32_t line = 0;
  std::string function;  // name of the function that contains the line; empty: none
  bool in_kernel = false;
};

// Returns a line to append to a PTX text; it limits the registers per thread of the file's kernels, as
// CU_JIT_MAX_REGISTERS does.
std::string register_limit_pragma(uint32_t registers);

// Accepts any bytes; memory and time are linear in the size of the text. The tree's string_views point into
// `text`. Checks syntax and names inside functions; the code generator checks the instructions.
std::variant<File, SyntaxError> parse(std::string_view text);

}  // namespace gpupool::softgpu::ptx
