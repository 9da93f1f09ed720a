// Validation of the inventory that a node reports when it registers. Pure functions, used by nodes.cc.
#pragma once
#include <optional>
#include <string>

#include "scheduler/core/node.h"

namespace gpupool::scheduler {

// Returns the first invalid field as a text; null if the inventory is valid.
std::optional<std::string> check_inventory(const pool::Inventory& inventory);
// Compares two inventories reported by the same poold process. Returns a text if the hardware differs, which
// means that one report is false; else null.
std::optional<std::string> contradiction(const pool::Inventory& before, const pool::Inventory& now);

}  // namespace gpupool::scheduler
