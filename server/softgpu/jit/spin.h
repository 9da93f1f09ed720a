// Finds loops in which a CUDA thread may wait for another thread of its block. Called by analyse().
//
// Such a loop must let other fibers run, or a spin lock would never be released. Three kinds of instructions
// count as waiting: a volatile, relaxed or acquire load; a compare-and-swap or exchange whose expected or new
// value does not change in the loop (a lock, as opposed to an atomic maximum by compare-and-swap, which
// succeeds without other threads); and an atomic operation that cannot change the value (atomicAdd(p, 0)).
// The branches back to the head of the innermost loop around such an instruction yield.
#pragma once
#include <cstdint>
#include <vector>

#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

// `definitions`: per register, the number of instructions that write it. Returns per instruction whether it
// is a branch that yields.
std::vector<bool> find_yielding_branches(const ptx::Function& function,
                                         const std::vector<uint32_t>& definitions);

}  // namespace gpupool::softgpu
