// The pool's state as JSON, for pool-admin --json and the web page. Pure functions. The field names are those
// of protocol/control/pool_admin.proto and must not change; fields may be added. Sizes are in bytes, times in
// the unit that the name ends with; a limit that is not set is null.
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
Json json_of(const BudgetState& budget);
Json json_of(const TenantState& tenant);
Json json_of(const Policy& policy);
Json json_of(const PoolSnapshot& snapshot);

// Names as users write them. For priorities and node conditions see protocol/control/priority.h and
// node_condition.h.
const char* text_of(lease::Mode mode);  // "elastic", "hard"
const char* text_of(Ended::Why why);

}  // namespace gpupool::pool
