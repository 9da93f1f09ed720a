// Names compiled code by all that it depends on: the PTX, the options, this library, LLVM and the processor.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "server/softgpu/jit/code_file.h"
#include "server/softgpu/jit/program.h"

namespace gpupool::softgpu {

// Nothing where this library or LLVM has no build id: then nothing tells one build from the next, and nothing is kept.
std::optional<CodeKey> key_of_program(std::span<const std::string_view> ptx_texts, const CompileOptions& options);

// Returns the key of a part of a program: the machine code of one kernel, or the mark that all of its functions were checked.
CodeKey key_within(const CodeKey& program, std::string_view part, uint64_t number = 0);

}  // namespace gpupool::softgpu
