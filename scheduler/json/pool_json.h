// The pool's state as JSON for programs and the web page. The names are those of protocol/control/pool_admin.proto and stay; fields
// may be added. Sizes are numbers of bytes, times numbers in the unit that the name ends with; what is not limited is null.
#pragma once
#include "protocol/control/node_condition.h"
#include "protocol/control/priority.h"
#include "scheduler/json/json.h"

namespace gpupool::pool {

Json json_of(const PoolState& pool);
Json json_of(const NodeState& node);
Json json_of(const PoolGpu& gpu);
Json json_of(const LeaseState& lease);
Json json_of(const Waiting& waiting);
Json json_of(const TenantQuota& quota);
Json json_of(const TenantState& tenant);
Json json_of(const Policy& policy);
Json json_of(const PoolSnapshot& snapshot);

// As users write them; a priority: protocol/control/priority.h; a node's condition: protocol/control/node_condition.h.
const char* text_of(lease::Mode mode);          // "elastic", "hard"
const char* text_of(Ended::Why why);

}  // namespace gpupool::pool
