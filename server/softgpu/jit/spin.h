// Finds loops in which a CUDA thread may wait for another thread of its block.
//
// Such a loop must let the other fibers run, or a spin lock would never be released. Three things in a loop
// count as waiting: a volatile, relaxed or acquire load; a compare-and-swap or exchange whose expected or new
// value does not change in the loop (a lock, as opposed to "atomic max by compare-and-swap", which succeeds
// without help); an atomic operation that cannot change the value (atomicAdd(p, 0)). The branches back to the
// head of the innermost loop around such an instruction yield.
#pragma once
#include <cstdint>
#include <vector>

#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

// `definitions`: per register, the number of instructions that write it. One flag per instruction.
std::vector<bool> find_waiting_branches(const ptx::Function& function,
                                        const std::vector<uint32_t>& definitions);

}  // namespace gpupool::softgpu
