// Finds where the lanes of a warp must wait for each other because code relies on lock step.
//
// Old code exchanges data between the lanes of a warp in shared memory without a barrier, trusting that a store of all
// lanes comes before the next load of any. The executor runs lanes one after another, so such code needs points at which
// they converge (softgpu_converge): before a load of what another lane may have stored since the last barrier, and before
// a store to what another lane may have loaded (docs/adr/0033 says what is found and what is not).
#pragma once
#include <cstdint>
#include <vector>

#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

// Where lanes converge: nowhere, where the analysis finds exchange between lanes, or before every access to memory that lanes share
// and every atomic (slow; shows whether a wrong result comes from lock step that the analysis does not find).
enum class Convergence : uint8_t { none, found, everywhere };

// `definitions`: per register, the number of instructions that write it. `synchronises`: the function has barriers or
// other operations in which threads meet; one without needs better evidence, since converging costs it its plain loops.
// One flag per instruction: the lanes converge before it. Empty: nowhere.
std::vector<bool> find_convergence_points(const ptx::Function& function, const std::vector<uint32_t>& definitions,
                                          bool synchronises);

std::vector<bool> all_memory_accesses(const ptx::Function& function);

}  // namespace gpupool::softgpu
