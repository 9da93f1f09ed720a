// Helpers for JSON output, used by pool-admin and the web page. Pure functions.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace gpupool {

using Json = nlohmann::ordered_json;

// Returns the array of json_of() of each message.
template <class Messages>
Json json_list(const Messages& messages) {
  Json list = Json::array();
  for (const auto& message : messages) list.push_back(json_of(message));
  return list;
}

// Returns one line without a newline. Replaces invalid UTF-8.
inline std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}
inline std::string line_of(const Json& json) {
  return json_text(json) + "\n";
}

}  // namespace gpupool
