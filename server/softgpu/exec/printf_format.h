// printf in kernels: C formats over CUDA's packed arguments. Internal to exec/; called on the thread that
// runs the block.
#pragma once
#include <cstdint>

namespace gpupool::softgpu {

constexpr uint32_t kMaxPrintfArguments = 32;  // CUDA's limit: further conversions are printed verbatim

struct FormattedText {
  uint64_t length = 0;    // bytes of text, truncated to the buffer's capacity
  int32_t arguments = 0;  // number of arguments used
  bool readable = true;   // false: the arguments or a string cannot be read at `bad_address`
  uint64_t bad_address = 0;
};

// Formats into `text` at most `capacity` characters, without a terminator. `arguments` is the generic address
// of the packed arguments: 4-byte integers at multiples of 4; 8-byte integers, pointers and doubles at
// multiples of 8. Checks every address before reading, ignores %n, and limits widths and precisions.
FormattedText format_device_text(char* text, uint64_t capacity, const char* format, uint64_t arguments);

}  // namespace gpupool::softgpu
