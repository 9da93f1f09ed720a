// The sources of NVML's answers on a machine without a GPU: the servers of GPUPOOL.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "client/nvml/server.h"
#include "client/process/log.h"

namespace gpupool::nvml {
namespace {

// Returns the servers that GPUPOOL names. For pool:// they are those that libcuda.so.1 in this process has
// leased, if any: NVML itself acquires no lease.
std::string servers_of_program() {
  const char* const text = std::getenv("GPUPOOL");
  if (!text || std::strncmp(text, "pool://", 7) != 0) return text ? text : "";
  void* const cuda = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!cuda) return "";
  using Servers = size_t (*)(char*, size_t);
  const auto servers = reinterpret_cast<Servers>(::dlsym(cuda, "gpupool_client_servers"));
  char known[8192] = "";
  if (servers && servers(known, sizeof known) >= sizeof known) known[0] = '\0';
  ::dlclose(cuda);
  return known;
}

}  // namespace

Result<std::vector<std::unique_ptr<Source>>> open_sources(bool may_be_empty) {
  std::vector<std::unique_ptr<Source>> sources;
  const std::string text = servers_of_program();
  if (text.empty() && may_be_empty) return sources;
  if (text.empty())
    return Error{ErrorCode::unavailable,
                 "no server configured: set GPUPOOL=tcp://HOST:PORT, or start the program with pool-run"};
  const auto named = client::named_servers(text);
  if (!named) return named.error();
  const client::Settings settings = client::settings_from_environment();
  for (size_t at = 0; at < named->size(); ++at) {
    auto server = Server::open(settings, [text, at]() -> Result<client::LeasedServer> {
      auto now = client::named_servers(text);
      if (!now) return now.error();
      if (at >= now->size()) return Error{ErrorCode::refused, "the lease has fewer servers now"};
      return std::move((*now)[at]);
    });
    if (!server) {
      return Error{server.error().code,
                   "cannot use the server " + named->at(at).endpoint.text() + ": " + server.error().message};
    }
    sources.push_back(std::move(*server));
  }
  return sources;
}

void report_failure(const Error& error) {
  client::log_error("NVML: %s", error.message.c_str());
}

}  // namespace gpupool::nvml
