// JSON output for programs: lists of messages, and single lines.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace gpupool {

using Json = nlohmann::ordered_json;

// json_of() of each message.
template <class Messages>
Json json_list(const Messages& messages) {
  Json list = Json::array();
  for (const auto& message : messages) list.push_back(json_of(message));
  return list;
}

// Returns one line without its newline. Bytes that are not UTF-8 are replaced.
inline std::string json_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
inline std::string line_of(const Json& json) { return json_text(json) + "\n"; }

}  // namespace gpupool
