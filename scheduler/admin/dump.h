// Formats a session's dump (protocol/control/dump.proto) for `pool-admin dump`, as text and as JSON with the
// message's field names. Pure functions.
#pragma once
#include <string>

#include "protocol/control/dump.pb.h"
#include "scheduler/json/json.h"

namespace gpupool::admin {

// Tables for a line of `width` characters; 0: unlimited.
std::string dump_text(const SessionDump& dump, size_t width);
Json json_of(const SessionDump& dump);

}  // namespace gpupool::admin
