// poold's messages as JSON for programs. The names are those of protocol/control/admin.proto and stay; fields may be added.
// Sizes are numbers of bytes, times numbers in the unit that the name ends with; what is not limited is null.
#pragma once
#include <nlohmann/json.hpp>

#include "protocol/control/admin.pb.h"

namespace gpupool::admin {

using Json = nlohmann::ordered_json;

Json json_of(const Poold& poold);
Json json_of(const Gpu& gpu);
Json json_of(const Session& session);
Json json_of(const Quota& quota);
Json json_of(const Tenant& tenant);
Json json_of(const Snapshot& snapshot);

template <class Messages>
Json json_list(const Messages& messages) {
  Json list = Json::array();
  for (const auto& message : messages) list.push_back(json_of(message));
  return list;
}

// One line; whatever bytes are in it, it is UTF-8.
std::string line_of(const Json& json);

}  // namespace gpupool::admin
