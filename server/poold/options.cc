#include "server/poold/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "common/settings/command_line.h"
#include "common/settings/toml_values.h"
#include "common/token/token.h"
#include "common/version.h"
#include "protocol/transport/rdma_options.h"
#include "server/poold/networks.h"

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

// Option values from the command line. Only options that were given are used.
struct CommandLineValues {
  std::vector<std::string> listen;
  bool no_shm = false;
  std::string rdma;
  std::map<std::string, std::string> rdma_settings;  // by name
  std::string device;
  std::string port_file;
  std::string admin_socket;
  std::string metrics;
  unsigned idle_workers = 0;
  unsigned max_sessions = 0;
  unsigned image_cache_mib = 0;
  unsigned code_cache_mib = 0;
  unsigned host_memory_for_idle_mib = 0;
  unsigned host_memory_for_checkpoints_mib = 0;
  double hello_timeout = 0;
  unsigned connections_per_second = 0;
  double dead_peer_timeout = 0;
  double turn_limit = 0;
  std::string config;
  std::string audit_file;
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_client_ca;
  bool make_token = false;
  std::string log_level;
  std::string log_format;
  bool insecure = false;
  std::string worker_users;
  WorkerLimits worker_limits;
  std::string peers;
  std::string sandbox;
  bool no_sandbox = false;
  bool users_at_paths = false;
  bool check_host = false;
};

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

}  // namespace

Result<void> set_rdma(std::string_view name, const std::string& text, ServerOptions& options) {
  const transport::RdmaSetting* const setting = transport::find_rdma_setting(name);
  if (!setting)
    return Error{ErrorCode::invalid, "unknown key; the keys are those of poold --help, without '--rdma-'"};
  transport::RdmaOptions checked;
  if (!setting->read(text, checked))
    return Error{ErrorCode::invalid, "'" + text + "' is not " + setting->values};
  options.rdma_settings[setting->variable] = text;
  return {};
}

unsigned half_of_host_memory_mib() {
  const auto pages = static_cast<uint64_t>(std::max(0l, ::sysconf(_SC_PHYS_PAGES))),
             size = static_cast<uint64_t>(std::max(0l, ::sysconf(_SC_PAGESIZE)));
  return static_cast<unsigned>(std::min<uint64_t>(kMostHostMemoryMib, (pages * size / 2) >> 20));
}

std::variant<ServerOptions, EarlyExit> parse_options(int count, char** arguments) {
  CommandLineValues given;
  CLI::App app(kAbout, "poold");
  app.footer(kNotes);
  app.set_version_flag("--version", std::string("poold ") + kVersion);
  const CLI::Range seconds(kLeastSeconds, kMostSeconds);
  const auto* listen =
      app.add_option("--listen", given.listen,
                     "address to listen on; may be repeated: tcp://HOST:PORT (port 0 picks a "
                     "free one), tls://HOST:PORT (encrypted), "
                     "rdma://HOST:PORT (RDMA connections start over TCP), "
                     "shm:///PATH or shm://@NAME (Unix socket and shared memory, for programs on this host "
                     "and for containers that share the folder) [tcp://127.0.0.1:9700]")
          ->allow_extra_args(false);
  const auto* no_shm = app.add_flag("--no-shm", given.no_shm,
                                    "do not offer shared memory beside tcp to programs on this host");
  app.add_option("--rdma", given.rdma,
                 "yes: offer RDMA to clients if this host has a device; no: never [yes]")
      ->check(CLI::IsMember({"yes", "no"}));
  for (const auto& setting : transport::rdma_settings()) {
    app.add_option(std::string("--rdma-") + setting.name, given.rdma_settings[setting.name], setting.meaning);
  }
  const auto* device =
      app.add_option("--device", given.device,
                     "softgpu, nvidia (the system's libcuda.so.1), or a path to a device library "
                     "[softgpu]");
  const auto* port_file =
      app.add_option("--port-file", given.port_file, "write the TCP port to this file when ready");
  const auto* admin_socket =
      app.add_option("--admin-socket", given.admin_socket,
                     "Unix socket for pool-admin, or none "
                     "[/run/poold/poold-PORT.sock for root, else $XDG_RUNTIME_DIR/poold/poold-PORT.sock]");
  const auto* metrics =
      app.add_option("--metrics", given.metrics,
                     "HOST:PORT to serve /metrics (Prometheus), /healthz and /readyz over HTTP [off]");
  const auto* idle =
      app.add_option("--idle-workers", given.idle_workers, "number of idle workers to keep ready [2]")
          ->check(CLI::Range(1u, kMostIdleWorkers));
  const auto* sessions =
      app.add_option("--max-sessions", given.max_sessions, "maximum number of concurrent sessions [64]")
          ->check(CLI::Range(1u, kMostSessions));
  const auto* image_cache = app.add_option("--image-cache-mib", given.image_cache_mib,
                                           "memory limit of the module image cache; 0: off "
                                           "[1024]")
                                ->check(CLI::Range(0u, kMostImageCacheMib));
  const auto* code_cache =
      app.add_option("--code-cache-mib", given.code_cache_mib,
                     "memory limit of the cache of compiled kernels, which a tenant's later programs reuse; "
                     "at most 64 MiB per tenant; 0: off [512]")
          ->check(CLI::Range(0u, kMostCodeCacheMib));
  const auto* host_memory = app.add_option("--host-memory-for-idle-mib", given.host_memory_for_idle_mib,
                                           "oversubscribe GPU memory: when a GPU is full, move memory of "
                                           "idle sessions to at most this much host memory; 0: off [0]")
                                ->check(CLI::Range(0u, kMostHostMemoryMib));
  const auto* checkpoint_memory =
      app.add_option(
             "--host-memory-for-checkpoints-mib", given.host_memory_for_checkpoints_mib,
             "limit of host memory for checkpointed programs' device memory (cuCheckpointProcess...); "
             "0: no checkpoints [half of the host's memory]")
          ->check(CLI::Range(0u, kMostHostMemoryMib));
  const auto* hello_timeout = app.add_option("--hello-timeout", given.hello_timeout,
                                             "seconds until a new connection must have sent its hello [5]")
                                  ->check(seconds);
  const auto* connections = app.add_option("--connections-per-second", given.connections_per_second,
                                           "rate limit of new connections per address (IPv4, a /64 of IPv6, "
                                           "or a local user), with bursts of twice as many; "
                                           "further connections are closed [4096]")
                                ->check(CLI::Range(1u, kMostConnectionsPerSecond));
  const auto* turn_limit =
      app.add_option("--turn-limit", given.turn_limit,
                     "seconds after which a session that does not yield a GPU loses its turn [1]")
          ->check(seconds);
  const auto* dead_peer = app.add_option("--dead-peer-timeout", given.dead_peer_timeout,
                                         "seconds until the session of an unreachable client ends [15]")
                              ->check(seconds);
  const auto* worker_users =
      app.add_option("--worker-users,--worker-user", given.worker_users,
                     "users for workers if poold runs as root: a name or ID for all, or a range such as "
                     "70000-70999, with one user per session [nobody]");
  const auto* worker_memory = app.add_option("--worker-memory-mib", given.worker_limits.memory_mib,
                                             "host memory limit of a worker, if poold's cgroup is delegated "
                                             "to it; with softgpu this includes the memory of "
                                             "its GPUs. A worker that exceeds it is killed; 0: no limit [0]")
                                  ->check(CLI::Range(0u, kMostHostMemoryMib));
  const auto* worker_threads = app.add_option("--worker-threads", given.worker_limits.threads,
                                              "limit of a worker's threads and processes, if poold's cgroup "
                                              "is delegated to it; 0: no limit [4096]")
                                   ->check(CLI::Range(0u, kMostWorkerThreads));
  const auto* worker_cpus = app.add_option("--worker-cpus", given.worker_limits.cpus,
                                           "CPU limit of a worker, if poold's cgroup is delegated to it; 0: "
                                           "no limit; busy workers share CPUs equally [0]")
                                ->check(CLI::Range(0u, kMostWorkerCpus));
  const auto* peers =
      app.add_option("--peers", given.peers,
                     "networks of other servers to which workers may copy directly, e.g. "
                     "10.1.0.0/16,fd00::/8; any (except loopback); none: copy through the client [none]");
  const auto* sandbox =
      app.add_option(
             "--sandbox", given.sandbox,
             "on: confine workers; log: execute forbidden system calls, and have the kernel log them; "
             "off: do not confine workers, to find out whether a device library needs a forbidden operation "
             "[on]")
          ->check(CLI::IsMember({"on", "off", "log"}));
  const auto* no_sandbox = app.add_flag("--no-sandbox", given.no_sandbox, "the same as --sandbox=off");
  app.add_flag("--check-host", given.check_host,
               "print which layers of the workers' confinement are effective on this host with the given "
               "options, and exit: 0 if all are, else 1");
  app.add_option("--config", given.config,
                 "TOML file with the same keys, and the tenants; command-line options take precedence. "
                 "SIGHUP reloads tenants, certificates and public keys");
  const auto* tls_certificate =
      app.add_option("--tls-certificate", given.tls_certificate,
                     "certificate chain of this server, for tls:// addresses (PEM)");
  const auto* tls_key = app.add_option(
      "--tls-key", given.tls_key, "private key of the certificate (PEM); should be readable by poold only");
  const auto* tls_client_ca = app.add_option(
      "--tls-client-ca", given.tls_client_ca,
      "CA certificates that sign clients' certificates (PEM); without it clients authenticate by token only");
  const auto* audit_file =
      app.add_option("--audit-file", given.audit_file,
                     "append a JSON record to this file for each session that starts, ends or is refused");
  app.add_flag("--make-token", given.make_token, "print a new tenant token and its hash, and exit");
  const auto* level =
      app.add_option("--log-level", given.log_level, std::string("one of ") + kLogLevels + " [info]");
  const auto* format =
      app.add_option("--log-format", given.log_format, std::string("one of ") + kLogFormats + " [text]");
  const auto* insecure = app.add_flag(
      "--insecure", given.insecure,
      "allow listening beyond loopback without TLS or authentication: every host on that network is trusted");
  const auto* users_at_paths = app.add_flag("--users-at-paths", given.users_at_paths,
                                            "user IDs of tenants also authenticate on shm:///PATH sockets; "
                                            "do not use if containers share the socket, "
                                            "because their user IDs overlap with the host's");
  const PoolCommandLine pool(app);
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return EarlyExit{app.exit(error)};
    return usage_error(describe_usage_error(app, error) + "; see poold --help");
  }

  if (given.make_token) return print_token();
  ServerOptions options;
  options.config_file = given.config;
  if (!given.config.empty()) {
    if (const auto read = read_config(given.config, options); !read) return usage_error(read.error().message);
  }
  if (listen->count() > 0) {
    options.listen.clear();
    for (const std::string& text : given.listen) {
      const auto endpoint = transport::Endpoint::parse(text);
      if (!endpoint) return usage_error("--listen: " + endpoint.error().message);
      options.listen.push_back(*endpoint);
    }
  }
  if (no_shm->count() > 0) options.shared_memory = !given.no_shm;
  if (!given.rdma.empty()) options.rdma = given.rdma == "yes";
  for (const auto& [name, text] : given.rdma_settings) {
    if (app.count("--rdma-" + name) == 0) continue;
    if (const auto set = set_rdma(name, text, options); !set)
      return usage_error("--rdma-" + name + ": " + set.error().message);
  }
  if (device->count() > 0) options.device = given.device;
  if (port_file->count() > 0) options.port_file = given.port_file;
  if (admin_socket->count() > 0) options.admin_socket = given.admin_socket;
  if (metrics->count() > 0) options.metrics = given.metrics;
  if (tls_certificate->count() > 0) options.tls.certificate = given.tls_certificate;
  if (tls_key->count() > 0) options.tls.key = given.tls_key;
  if (tls_client_ca->count() > 0) options.tls.ca = given.tls_client_ca;
  if (audit_file->count() > 0) options.audit_file = given.audit_file;
  if (idle->count() > 0) options.idle_workers = given.idle_workers;
  if (sessions->count() > 0) options.max_sessions = given.max_sessions;
  if (host_memory->count() > 0) options.host_memory_for_idle_mib = given.host_memory_for_idle_mib;
  if (checkpoint_memory->count() > 0)
    options.host_memory_for_checkpoints_mib = given.host_memory_for_checkpoints_mib;
  if (code_cache->count() > 0) options.code_cache_mib = given.code_cache_mib;
  if (image_cache->count() > 0) options.image_cache_mib = given.image_cache_mib;
  if (hello_timeout->count() > 0) options.hello_timeout = to_milliseconds(given.hello_timeout);
  if (connections->count() > 0) options.connections_per_second = given.connections_per_second;
  if (turn_limit->count() > 0) options.turn_limit = to_milliseconds(given.turn_limit);
  if (dead_peer->count() > 0) options.dead_peer_timeout = to_milliseconds(given.dead_peer_timeout);
  if (level->count() > 0 && !log::parse(given.log_level, options.log_level)) {
    return usage_error("--log-level: '" + given.log_level + "' is not one of " + kLogLevels);
  }
  if (format->count() > 0 && !log::parse(given.log_format, options.log_format)) {
    return usage_error("--log-format: '" + given.log_format + "' is not one of " + kLogFormats);
  }
  if (insecure->count() > 0) options.insecure = given.insecure;
  if (users_at_paths->count() > 0) options.users_at_paths = given.users_at_paths;
  if (worker_users->count() > 0) options.worker_users = given.worker_users;
  if (worker_memory->count() > 0) options.worker_limits.memory_mib = given.worker_limits.memory_mib;
  if (worker_threads->count() > 0) options.worker_limits.threads = given.worker_limits.threads;
  if (worker_cpus->count() > 0) options.worker_limits.cpus = given.worker_limits.cpus;
  if (sandbox->count() > 0) parse(given.sandbox, options.sandbox);
  if (no_sandbox->count() > 0 && given.no_sandbox) options.sandbox = Sandbox::off;
  options.check_host = given.check_host;
  if (const auto checked = check_worker_users(options); !checked)
    return usage_error("--worker-users: " + checked.error().message);
  if (peers->count() > 0) options.peers = given.peers;
  if (const auto applied = pool.apply(options.pool); !applied) return usage_error(applied.error().message);
  if (const auto checked = check_pool(options.pool); !checked) return usage_error(checked.error().message);
  if (options.peers.empty()) options.peers = "none";
  if (const auto networks = Networks::parse(options.peers); !networks)
    return usage_error("--peers: " + networks.error().message);
  const auto any = [&](auto&& condition) {
    return std::any_of(options.listen.begin(), options.listen.end(), condition);
  };
  if (!options.port_file.empty() && !any([](const auto& endpoint) { return endpoint.scheme != "shm"; })) {
    return usage_error("--port-file: requires --listen tcp://, tls:// or rdma://");
  }
  const auto everywhere = [](const auto& endpoint) {
    return endpoint.host == "0.0.0.0" || endpoint.host == "::" || endpoint.host == "[::]";
  };
  if (!options.pool.schedulers.empty() && options.pool.addresses.empty() && any(everywhere)) {
    return usage_error("[pool] addresses: required because poold listens on all addresses; e.g. tls://" +
                       options.pool.name + ":9700");
  }
  if (!options.rdma && any([](const auto& endpoint) { return endpoint.scheme == "rdma"; })) {
    return usage_error("--listen rdma://...: conflicts with --rdma no");
  }
  if (any([](const auto& endpoint) { return endpoint.scheme == "tls"; }) &&
      (options.tls.certificate.empty() || options.tls.key.empty())) {
    return usage_error("--listen tls://...: requires --tls-certificate and --tls-key (or [tls])");
  }
  return options;
}

}  // namespace gpupool::server
