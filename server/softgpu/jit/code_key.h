// Keys of compiled code: hashes of everything the code depends on, namely the PTX, the options, this library,
// LLVM and the processor. Thread-safe.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "server/softgpu/jit/code_file.h"
#include "server/softgpu/jit/program.h"

namespace gpupool::softgpu {

// Returns nullopt if this library or LLVM has no build id: then builds cannot be told apart and nothing is
// cached.
std::optional<CodeKey> key_of_program(std::span<const std::string_view> ptx_texts,
                                      const CompileOptions& options);

// Returns the key of a part of a program: the machine code of one kernel, or the mark that all its functions
// were checked.
CodeKey key_within(const CodeKey& program, std::string_view part, uint64_t number = 0);

}  // namespace gpupool::softgpu
