#include "client/slurm/request.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "client/run/request.h"

namespace gpupool::slurm {
namespace {

bool is_size(const std::string& name) {
  return name == "memory" || name == "host-memory";
}

// Slurm's "8G" are 8 GiB.
std::string with_unit(std::string value) {
  const bool bare = value.size() > 1 &&
                    std::isdigit(static_cast<unsigned char>(value[value.size() - 2])) != 0 &&
                    std::string_view("KMGT").find(value.back()) != std::string_view::npos;
  return bare ? value + "iB" : value;
}

Result<std::string> term_query(const std::string& term) {
  const size_t equals = term.find('=');
  std::string word = "--" + term;
  if (equals != std::string::npos && is_size(term.substr(0, equals)))
    word = "--" + term.substr(0, equals + 1) + with_unit(term.substr(equals + 1));
  char* words[] = {word.data(), nullptr};
  char** at = words;
  const auto parsed = run::parse_request_option(at);
  if (!parsed) {
    return Error{ErrorCode::invalid, "--gpupool: '" + term + "' has no value, or one that it must not have"};
  }
  if (!parsed->has_value()) {
    return Error{ErrorCode::invalid, "--gpupool: unknown term '" + term +
                                         "'; use for example --gpupool=gpus=2,memory=8G,compute=50, with the "
                                         "options of pool-run (gpus, memory, compute, model, one-host, ...)"};
  }
  return **parsed;
}

}  // namespace

Result<std::string> request_query(const std::string& option) {
  std::string query;
  for (size_t at = 0; at < option.size();) {
    const size_t end = std::min(option.find(',', at), option.size());
    const auto term = term_query(option.substr(at, end - at));
    if (!term) return term.error();
    query += (query.empty() ? "" : "&") + *term;
    at = end + 1;
  }
  return query;
}

std::string first_host(const std::string& hosts) {
  std::string host;
  for (size_t i = 0; i < hosts.size() && hosts[i] != ',';) {
    if (hosts[i] != '[') {
      host += hosts[i++];
      continue;
    }
    const size_t close = hosts.find(']', i);
    if (close == std::string::npos) break;
    const std::string range = hosts.substr(i + 1, close - i - 1);
    host += range.substr(0, range.find_first_of(",-"));
    i = close + 1;
  }
  return host;
}

}  // namespace gpupool::slurm
