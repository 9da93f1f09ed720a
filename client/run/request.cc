#include "client/run/request.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <iterator>
#include <string_view>

namespace gpupool::run {
namespace {

// The resources that may be requested from a pool; all but the last take a value.
constexpr std::string_view kRequestKeys[] = {"gpus", "compute",  "memory", "model", "cpus",  "host-memory",
                                             "mode", "priority", "near",   "apart", "label", "one-host"};

std::string encoded(const std::string& value) {
  std::string out;
  for (const char c : value) {
    char code[4];
    std::snprintf(code, sizeof code, "%%%02X", static_cast<unsigned char>(c));
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
    out += plain ? std::string(1, c) : code;
  }
  return out;
}

Error usage(const std::string& message) {
  return {ErrorCode::invalid, message};
}

}  // namespace

Result<std::optional<std::string>> parse_request_option(char**& words) {
  const std::string word = *words;
  const size_t equals = word.find('=');
  const std::string name =
      word.starts_with("--") ? word.substr(2, equals == std::string::npos ? equals : equals - 2) : "";
  if (std::find(std::begin(kRequestKeys), std::end(kRequestKeys), name) == std::end(kRequestKeys))
    return std::optional<std::string>();
  std::string value = equals == std::string::npos ? "1" : word.substr(equals + 1);
  if (name == "one-host" && equals != std::string::npos) return usage("--one-host takes no value");
  if (name != "one-host" && equals == std::string::npos) {
    if (words[1] == nullptr) return usage("--" + name + " needs a value; see pool-run --help");
    value = *++words;
  }
  return std::optional(name + "=" + encoded(value));
}

std::string with_request(const std::string& address, const std::string& query) {
  if (query.empty()) return address;
  return address + (address.find('?') == std::string::npos ? "?" : "&") + query;
}

}  // namespace gpupool::run
