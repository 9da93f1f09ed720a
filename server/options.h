// poold's settings: from the command line, and from a TOML file for what the command line does not say.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol/transport/transport.h"
#include "protocol/wire/result.h"
#include "server/confinement/cgroups.h"
#include "server/confinement/worker_users.h"
#include "server/log/log.h"
#include "server/pool/pool_options.h"
#include "server/tenants/tenant.h"

namespace gpupool::server {

unsigned half_of_host_memory_mib();

struct ServerOptions {
  std::vector<transport::Endpoint> listen{{"tcp", "127.0.0.1", 9700}};  // never empty
  bool shared_memory = true;       // beside tcp, for programs of this host
  bool rdma = true;                // offered to clients that wish it, where the host has a device
  std::map<std::string, std::string> rdma_settings;  // transport::rdma_settings() as variables for the workers, checked
  std::string device = "softgpu";  // "softgpu", "nvidia" or a path
  std::string port_file;           // empty: none
  std::string admin_socket;        // empty: beside others of this host (admin_address.h); "none"
  std::string metrics;             // HOST:PORT; empty: none
  transport::TlsOptions tls;       // certificate and key where `listen` has tls://
  std::string audit_file;          // empty: none
  std::string config_file;         // empty: none
  std::vector<Tenant> tenants;     // of the file, checked
  PoolOptions pool;                // checked
  unsigned idle_workers = 2;
  unsigned max_sessions = 64;
  unsigned image_cache_mib = 1024;  // 0: none
  unsigned code_cache_mib = 512;    // 0: none
  unsigned host_memory_for_idle_mib = 0;  // for device memory of sessions that have nothing to do; 0: it stays where it is
  unsigned host_memory_for_checkpoints_mib = half_of_host_memory_mib();  // for device memory of sessions that a program has checkpointed; 0: none can be
  std::chrono::milliseconds hello_timeout{5'000};
  unsigned connections_per_second = 4096;  // of one peer (admission/peer.h)
  std::chrono::milliseconds dead_peer_timeout{15'000};
  std::chrono::milliseconds turn_limit{1'000};  // a turn on a GPU that is not given back is taken so long afterwards
  log::Level log_level = log::Level::info;
  log::Format log_format = log::Format::text;
  std::string worker_users = "nobody";  // WorkerUsers, when poold is root; empty: workers stay root
  WorkerLimits worker_limits;           // where poold's cgroup is delegated to it (server/confinement/cgroups.h)
  bool users_at_paths = false;          // tenants' users count on shm:///PATH sockets, too
  Sandbox sandbox = Sandbox::on;        // how workers are confined (server/worker/sandbox.h)
  bool check_host = false;              // --check-host: say which layers of the confinement hold here, and exit
  std::string peers;                    // Networks for copies to other servers; never empty after parse_options()
  bool insecure = false;  // listen beyond loopback without TLS or without tenants' credentials
};

struct EarlyExit {  // --help, --version, or a mistake whose text has been printed
  int status = 0;
};

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// What the command line and the file accept.
constexpr unsigned kMostIdleWorkers = 256;
constexpr unsigned kMostConnectionsPerSecond = 1'000'000;
constexpr unsigned kMostSessions = 65'536;
constexpr unsigned kMostImageCacheMib = 1u << 20;
constexpr unsigned kMostCodeCacheMib = 1u << 20;
constexpr unsigned kMostHostMemoryMib = 1u << 26;
constexpr unsigned kMostWorkerThreads = 1u << 22;  // as many as Linux has
constexpr unsigned kMostWorkerCpus = 1u << 16;

std::variant<ServerOptions, EarlyExit> parse_options(int count, char** words);

// One of transport::rdma_settings(), by its name.
Result<void> set_rdma(std::string_view name, const std::string& text, ServerOptions& options);

// Overwrites what the file names. Unknown keys and values of the wrong kind are errors that name file and
// key.
Result<void> read_config(const std::string& path, ServerOptions& options);

}  // namespace gpupool::server
