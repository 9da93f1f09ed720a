// The events of a timeline's file, strictly parsed: throws if the file is not JSON.
#pragma once
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpupool::client::timeline::test {

using Json = nlohmann::json;

inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<Json> events(const std::string& path) {
  return Json::parse(content(path)).get<std::vector<Json>>();
}

inline size_t count_named(const std::string& path, const std::string& name) {
  size_t count = 0;
  for (const Json& event : events(path)) count += event.at("name") == name;
  return count;
}

}  // namespace gpupool::client::timeline::test
