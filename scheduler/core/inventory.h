// What a node says that it has. Pure.
#pragma once
#include <optional>
#include <string>

#include "scheduler/core/node.h"

namespace gpupool::scheduler {

// What is wrong with it, whatever is known of the node.
std::optional<std::string> check_inventory(const pool::Inventory& inventory);
// The same process says something else than it said before: what.
std::optional<std::string> contradiction(const pool::Inventory& before, const pool::Inventory& now);

}  // namespace gpupool::scheduler
