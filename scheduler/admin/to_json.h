// poold's messages as JSON for programs. The names are those of protocol/control/admin.proto and stay; fields may be added.
// Sizes are numbers of bytes, times numbers in the unit that the name ends with; what is not limited is null.
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
