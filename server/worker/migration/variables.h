// The variables of the session's modules and libraries, with their addresses on this device. Executor's
// thread.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/result.h"
#include "protocol/images/variables.h"
#include "server/worker/migration/history.h"

namespace gpupool::worker {

class Session;
struct ContextState;

struct Variable {
  std::string name;
  ContextState* context = nullptr;
  uint64_t address = 0, size = 0;
};

// The names of what code declares, by module or library and device: finding them takes long.
using VariableLists = std::map<std::pair<uint64_t, int>, cuda::ModuleVariables>;

// Calls `visit` for each variable of the module or library that this command has loaded, in every context
// that has it. Returns an error if there are variables that cannot be found by their names, or memory that
// kernels have allocated.
Result<void> for_each_variable(Session& session, const History::Entry& load, VariableLists& lists,
                               const std::function<void(const Variable&)>& visit);

// Finds a variable of a module or library in the current context. CUDA_ERROR_NOT_FOUND: there is none.
CUresult find_variable(Session& session, uint64_t owner, const std::string& name, Variable* found);

}  // namespace gpupool::worker
