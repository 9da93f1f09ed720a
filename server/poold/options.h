// poold's settings, from command-line options and from a TOML file with the same keys; the command line wins.
//
// main() parses them before poold starts; read_config() also runs on SIGHUP. parse_options() prints errors to
// stderr and returns an EarlyExit.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/log/log.h"
#include "common/result.h"
#include "protocol/transport/transport.h"
#include "server/confinement/cgroups.h"
#include "server/confinement/worker_users.h"
#include "server/poold/node/pool_options.h"
#include "server/tenants/tenant.h"

namespace gpupool::server {

unsigned half_of_host_memory_mib();

struct ServerOptions {
  std::vector<transport::Endpoint> listen{{"tcp", "127.0.0.1", 9700}};  // never empty
  bool shared_memory = true;  // also listen on shared memory beside each TCP port
  bool rdma = true;           // offer RDMA to clients that ask for it, if the host has a device
  // Environment variables for the workers (transport::rdma_settings()), checked.
  std::map<std::string, std::string> rdma_settings;
  std::string device = "softgpu";  // "softgpu", "nvidia" or a path
  std::string port_file;           // empty: none
  std::string admin_socket;        // empty: default path (admin_address.h); "none": no socket
  std::string metrics;             // HOST:PORT; empty: none
  transport::TlsOptions tls;       // certificate and key are set if `listen` has tls://
  std::string audit_file;          // empty: none
  std::string config_file;         // empty: none
  std::vector<Tenant> tenants;     // from the file, checked
  PoolOptions pool;                // checked
  unsigned idle_workers = 2;
  unsigned max_sessions = 64;
  unsigned image_cache_mib = 1024;  // 0: none
  unsigned code_cache_mib = 512;    // 0: none
  // Host memory for idle sessions' device memory; 0: device memory is never moved.
  unsigned host_memory_for_idle_mib = 0;
  // Host memory for checkpointed sessions' device memory; 0: no checkpoints.
  unsigned host_memory_for_checkpoints_mib = half_of_host_memory_mib();
  std::chrono::milliseconds hello_timeout{5'000};
  unsigned connections_per_second = 4096;  // of one peer (common/admission/peer.h)
  std::chrono::milliseconds dead_peer_timeout{15'000};
  // A session that does not return a GPU when asked loses its turn after this time.
  std::chrono::milliseconds turn_limit{1'000};
  log::Level log_level = log::Level::info;
  log::Format log_format = log::Format::text;
  // Users for workers if poold is root (WorkerUsers); empty: workers stay root.
  std::string worker_users = "nobody";
  WorkerLimits worker_limits;   // applied if poold's cgroup is delegated to it (server/confinement/cgroups.h)
  bool users_at_paths = false;  // user IDs also authenticate tenants on shm:///PATH sockets
  Sandbox sandbox = Sandbox::on;  // how workers are confined (server/worker/sandbox/sandbox.h)
  bool check_host = false;        // --check-host: print which confinement layers are effective, and exit
  std::string peers;      // Networks that copies between servers may use; never empty after parse_options()
  bool insecure = false;  // allow listening beyond loopback without TLS or authentication
};

struct EarlyExit {  // for --help, --version, or a usage error whose text has been printed
  int status = 0;
};

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// Upper limits of options and configuration keys.
constexpr unsigned kMostIdleWorkers = 256;
constexpr unsigned kMostConnectionsPerSecond = 1'000'000;
constexpr unsigned kMostSessions = 65'536;
constexpr unsigned kMostImageCacheMib = 1u << 20;
constexpr unsigned kMostCodeCacheMib = 1u << 20;
constexpr unsigned kMostHostMemoryMib = 1u << 26;
constexpr unsigned kMostWorkerThreads = 1u << 22;  // Linux's PID_MAX_LIMIT
constexpr unsigned kMostWorkerCpus = 1u << 16;

std::variant<ServerOptions, EarlyExit> parse_options(int count, char** arguments);

// Sets the option `name` of transport::rdma_settings(). ErrorCode::invalid: unknown name or bad value.
Result<void> set_rdma(std::string_view name, const std::string& text, ServerOptions& options);

// Overwrites the options that the file sets. An unknown key or a value of the wrong type is an error that
// names the file and the key.
Result<void> read_config(const std::string& path, ServerOptions& options);

}  // namespace gpupool::server
