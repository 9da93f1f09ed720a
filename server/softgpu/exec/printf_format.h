// printf in kernels: C formats over CUDA's packed arguments. Internal to exec/.
#pragma once
#include <cstdint>

namespace gpupool::softgpu {

constexpr uint32_t kMaxPrintfArguments = 32;  // as CUDA: conversions beyond are printed as they are written

struct FormattedText {
  uint64_t length = 0;     // of the text, cut to the buffer's capacity
  int32_t arguments = 0;   // used
  bool readable = true;    // false: the arguments or a string are not readable memory, at `bad_address`
  uint64_t bad_address = 0;
};

// `arguments`: generic address of the packed arguments: 4-byte integers at multiples of 4; 8-byte integers, pointers and
// doubles at multiples of 8. Writes at most `capacity` characters to `text`, no terminator. Never reads what the kernel
// points to without checking, never writes for %n, and limits widths and precisions.
FormattedText format_device_text(char* text, uint64_t capacity, const char* format, uint64_t arguments);

}  // namespace gpupool::softgpu
