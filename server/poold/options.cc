#include "server/poold/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "common/settings/option_table.h"
#include "common/settings/toml_values.h"
#include "common/token/token.h"
#include "common/version.h"
#include "server/sockets/networks.h"

namespace gpupool::server {
namespace {

using namespace settings;

constexpr const char* kAbout =
    "poold: serves this host's GPUs to remote programs that use gpupool's client library.\n"
    "Each session runs in its own worker process.";
constexpr const char* kNotes =
    "Exit status: 0 after SIGTERM or SIGINT, 1 if poold cannot start, 2 for a usage error.\n"
    "softgpu reads SOFTGPU_DEVICES, SOFTGPU_MEMORY, SOFTGPU_COMPUTE_CAPABILITY and SOFTGPU_INSTANCE "
    "(instances with different\n"
    "names have separate GPUs).";

EarlyExit usage_error(const std::string& what) {
  std::fprintf(stderr, "poold: %s\n", what.c_str());
  return {kExitUsage};
}

Result<void> check_worker_users(const ServerOptions& options) {
  const auto users = WorkerUsers::parse(options.worker_users);
  if (!users) return users.error();
  const size_t workers = size_t{options.max_sessions} + options.idle_workers;
  if (!users->one_per_worker() || users->size() >= workers) return {};
  return Error{ErrorCode::invalid, "'" + options.worker_users + "' has " + std::to_string(users->size()) +
                                       " users, but up to " + std::to_string(workers) +
                                       " workers need one each (--max-sessions plus --idle-workers)"};
}

EarlyExit print_token() {
  const auto token = make_token();
  if (!token) {
    std::fprintf(stderr, "poold: %s\n", token.error().message.c_str());
    return {kExitFailure};
  }
  std::printf("%s\ntokens = [\"%s\"]\n", token->c_str(), hash_text(hash_token(*token)).c_str());
  std::fflush(stdout);
  std::fputs(
      "The first line is the token: the tenant stores it in a file that only it can read "
      "(GPUPOOL_TOKEN_FILE). The second is\n"
      "its SHA-256 hash, for [[tenant]] in poold's configuration.\n",
      stderr);
  return {std::ferror(stdout) == 0 ? 0 : kExitFailure};
}

// Checks the addresses, and the options that depend on them.
Result<void> check_addresses(const ServerOptions& options) {
  const auto any = [&](auto&& condition) {
    return std::any_of(options.listen.begin(), options.listen.end(), condition);
  };
  const auto everywhere = [](const auto& endpoint) {
    return endpoint.host == "0.0.0.0" || endpoint.host == "::" || endpoint.host == "[::]";
  };
  if (!options.port_file.empty() && !any([](const auto& endpoint) { return endpoint.scheme != "shm"; }))
    return wrong("--port-file: requires --listen tcp://, tls:// or rdma://");
  if (!options.pool.schedulers.empty() && options.pool.addresses.empty() && any(everywhere))
    return wrong("[pool] addresses: required because poold listens on all addresses; e.g. tls://" +
                 options.pool.name + ":9700");
  if (!options.rdma && any([](const auto& endpoint) { return endpoint.scheme == "rdma"; }))
    return wrong("--listen rdma://...: conflicts with --rdma no");
  if (any([](const auto& endpoint) { return endpoint.scheme == "tls"; }) &&
      (options.tls.certificate.empty() || options.tls.key.empty()))
    return wrong("--listen tls://...: requires --tls-certificate and --tls-key (or [tls])");
  return {};
}

// Checks the options together and completes those that depend on this host.
Result<void> check(ServerOptions& options) {
  if (const auto checked = check_worker_users(options); !checked)
    return wrong("--worker-users: " + checked.error().message);
  if (auto checked = check_pool(options.pool); !checked) return checked;
  if (options.peers.empty()) options.peers = "none";
  if (const auto networks = Networks::parse(options.peers); !networks)
    return wrong("--peers: " + networks.error().message);
  return check_addresses(options);
}

}  // namespace

unsigned half_of_host_memory_mib() {
  const auto pages = static_cast<uint64_t>(std::max(0l, ::sysconf(_SC_PHYS_PAGES))),
             size = static_cast<uint64_t>(std::max(0l, ::sysconf(_SC_PAGESIZE)));
  return static_cast<unsigned>(std::min<uint64_t>(kMostHostMemoryMib, (pages * size / 2) >> 20));
}

std::variant<ServerOptions, EarlyExit> parse_options(int count, char** arguments) {
  ServerOptions options;
  CLI::App app(kAbout, "poold");
  app.footer(kNotes);
  app.set_version_flag("--version", std::string("poold ") + kVersion);
  CommandLine command_line(app, option_rows(options));
  if (const auto status = command_line.parse(count, arguments)) return EarlyExit{*status};
  if (options.make_token) return print_token();
  if (!options.config_file.empty()) {
    if (const auto read = read_config(options.config_file, options); !read)
      return usage_error(read.error().message);
  }
  if (const auto taken = command_line.take(); !taken) return usage_error(taken.error().message);
  if (const auto checked = check(options); !checked) return usage_error(checked.error().message);
  return options;
}

}  // namespace gpupool::server
