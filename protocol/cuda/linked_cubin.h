// What softgpu's linker hands out: a cubin, as programs expect it of cuLinkComplete, that keeps the PTX texts it was linked from,
// one section each; they are linked when it is loaded. Pure functions, any thread.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/cuda/fatbin.h"

namespace gpupool::cuda {

constexpr size_t kMaxLinkedTexts = 4096;

// At most kMaxLinkedTexts. `arch`: 10 * major + minor.
std::string make_linked_cubin(std::span<const std::string> texts, uint32_t arch);

// The texts in an ELF file, whatever it holds; none: it was not made here, or is broken. They point into the file.
std::vector<std::string_view> texts_of_linked_cubin(ByteSpan elf);

}  // namespace gpupool::cuda
