// Parses one PTX file.
#pragma once
#include <string>
#include <string_view>
#include <variant>

#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu::ptx {

struct SyntaxError {
  std::string message;  // one line, without position
  uint32_t line = 0;
  std::string function;  // that has the line; empty: none
  bool in_kernel = false;
};

// Accepts any bytes; memory and time are linear in the text. The tree's string_views point into `text`.
// Checks syntax and names inside functions; what instructions mean is the code generator's business.
std::variant<File, SyntaxError> parse(std::string_view text);

}  // namespace gpupool::softgpu::ptx
