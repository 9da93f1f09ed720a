// The result of softgpu's linker: a cubin, as programs expect from cuLinkComplete, that contains the PTX
// texts it was linked from, one per section. They are linked when the cubin is loaded. Pure functions, any
// thread.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/images/fatbin.h"

namespace gpupool::cuda {

constexpr size_t kMaxLinkedTexts = 4096;

// At most kMaxLinkedTexts texts. `arch`: 10 * major + minor.
std::string make_linked_cubin(std::span<const std::string> texts, uint32_t arch);

// Returns the texts in an untrusted ELF file, as views into it. Empty: the file was not made here, or is
// broken.
std::vector<std::string_view> texts_of_linked_cubin(ByteSpan elf);

}  // namespace gpupool::cuda
