// JSON as programs read it: lists of messages, and one line of text.
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

// Without an end of line. The text is UTF-8 whatever bytes are in it: those that are not are replaced.
inline std::string json_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
inline std::string line_of(const Json& json) { return json_text(json) + "\n"; }

}  // namespace gpupool
