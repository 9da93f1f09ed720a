// poold's settings, from command-line options and from a TOML file with the same keys; the command line wins.
// options.def has the options, one row for each.
//
// main() parses them before poold starts; read_config() also runs on SIGHUP. parse_options() prints errors to
// stderr and returns an EarlyExit.
#pragma once
#include <chrono>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "common/log/log.h"
#include "common/result.h"
#include "protocol/transport/transport.h"
#include "server/confinement/cgroups.h"
#include "server/confinement/worker_users.h"
#include "server/poold/node/pool_options.h"
#include "server/tenants/tenant.h"

namespace gpupool::settings {
struct OptionRow;
}

namespace gpupool::server {

constexpr unsigned kMostHostMemoryMib = 1u << 26;
unsigned half_of_host_memory_mib();

struct ServerOptions {
#define OPTION(type, member, initial, kind, name, help) type member = initial;
#include "server/poold/options.def"
  // Environment variables for the workers (transport::rdma_settings()), checked.
  std::map<std::string, std::string> rdma_settings;
  transport::TlsOptions tls;    // certificate and key are set if `listen` has tls://
  WorkerLimits worker_limits;   // applied if poold's cgroup is delegated to it (server/confinement/cgroups.h)
  PoolOptions pool;             // checked
  std::vector<Tenant> tenants;  // from the file, checked
};

struct EarlyExit {  // for --help, --version, or a usage error whose text has been printed
  int status = 0;
};

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

std::variant<ServerOptions, EarlyExit> parse_options(int count, char** arguments);

// The table of options (options.def). Its rows set the members of `options`, which must outlive them.
std::vector<settings::OptionRow> option_rows(ServerOptions& options);

// Overwrites the options that the file sets. An unknown key or a value of the wrong type is an error that
// names the file and the key.
Result<void> read_config(const std::string& path, ServerOptions& options);

}  // namespace gpupool::server
