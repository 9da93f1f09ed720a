// Finds the points at which the lanes of a warp must wait for each other because the code relies on lock
// step. Called by analyse().
//
// Older code exchanges data between the lanes of a warp through memory without a barrier, on the
// assumption that a store is complete in all lanes before any lane executes the next load. The executor runs
// lanes one after another, so such code needs points of convergence (softgpu_converge): before a load of data
// that another lane may have stored since the last barrier, and before a store to data that another lane may
// have loaded (docs/adr/0033 lists what is found and what is not).
#pragma once
#include <cstdint>
#include <vector>

#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

// Where lanes converge: nowhere; where the analysis finds an exchange between lanes; or before every atomic
// and every load and store, except of .param and .const. The last is slow; it shows whether a wrong result
// comes from lock step that the analysis misses.
enum class Convergence : uint8_t { none, found, everywhere };

// `definitions`: per register, the number of instructions that write it. `synchronises`: the function has
// barriers or other operations in which threads meet; a function without them needs stronger evidence, since
// converging rules out running its threads in plain loops. Returns per instruction whether the lanes converge
// before it; empty: nowhere.
std::vector<bool> find_convergence_points(const ptx::Function& function,
                                          const std::vector<uint32_t>& definitions, bool synchronises);

std::vector<bool> all_memory_accesses(const ptx::Function& function);

}  // namespace gpupool::softgpu
