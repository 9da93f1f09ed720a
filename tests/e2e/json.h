// JSON in the output of programs, for the tests of this folder. The parser is a large template, which
// e2e_support instantiates once for all tests.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace gpupool::testing {

using Json = nlohmann::json;

// Throws nlohmann::json::parse_error.
Json parse_json(const std::string& text);

}  // namespace gpupool::testing
