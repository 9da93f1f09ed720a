// poold's admin messages as JSON, for pool-admin --json. Pure functions. The field names are those of
// protocol/control/admin.proto and must not change; fields may be added. Sizes are in bytes, times in the
// unit that the name ends with; a limit that is not set is null.
#pragma once
#include "protocol/control/admin.pb.h"
#include "scheduler/json/json.h"

namespace gpupool::admin {

Json json_of(const Poold& poold);
Json json_of(const Gpu& gpu);
Json json_of(const Session& session);
Json json_of(const Quota& quota);
Json json_of(const Tenant& tenant);
Json json_of(const Snapshot& snapshot);

}  // namespace gpupool::admin
