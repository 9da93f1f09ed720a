// A session's dump (protocol/control/dump.proto) as text for people, and as JSON for programs with the names of the message's fields.
#pragma once
#include <string>

#include "protocol/control/dump.pb.h"
#include "scheduler/json/json.h"

namespace gpupool::admin {

// Tables for a line of `width` characters, 0: any.
std::string dump_text(const SessionDump& dump, size_t width);
Json json_of(const SessionDump& dump);

}  // namespace gpupool::admin
