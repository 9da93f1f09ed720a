// Options of pool-run that request resources from a pool, and their form in the query string of a pool://
// address. One thread.
#pragma once
#include <optional>
#include <string>

#include "common/result.h"

namespace gpupool::run {

// Parses an option that requests resources, for example "--memory" with the following word, or
// "--memory=8GiB". `words` points at the option and is left at the last word that was used. Returns the
// option as "memory=8GiB", percent-encoded; empty if the word is another option. ErrorCode::invalid: a value
// is missing or not allowed.
Result<std::optional<std::string>> parse_request_option(char**& words);

// Returns `address` with further terms of a query string.
std::string with_request(const std::string& address, const std::string& query);

}  // namespace gpupool::run
