#include "server/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "protocol/transport/rdma_options.h"
#include "server/networks.h"
#include "server/settings/command_line.h"
#include "server/settings/toml_values.h"
#include "server/tenants/token.h"
#include "server/version.h"

namespace gpupool::server {
namespace {

using namespace settings;

constexpr const char* kAbout =
    "poold: serves the GPUs of this host to programs that run elsewhere with gpupool's client library.\n"
    "Each client gets a worker process of its own.";
constexpr const char* kNotes =
    "Exit status: 0 after SIGTERM or SIGINT, 1 when it cannot start or go on, 2 for a wrong option.\n"
    "softgpu reads SOFTGPU_DEVICES, SOFTGPU_MEMORY, SOFTGPU_COMPUTE_CAPABILITY and SOFTGPU_INSTANCE (poolds that name different\n"
    "instances have GPUs of their own).";

// Option values from the command line. Only options that were given are used.
struct Words {
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

EarlyExit mistake(const std::string& what) {
  std::fprintf(stderr, "poold: %s\n", what.c_str());
  return {kExitUsage};
}

Result<void> check_worker_users(const ServerOptions& options) {
  const auto users = WorkerUsers::parse(options.worker_users);
  if (!users) return users.error();
  const size_t workers = size_t{options.max_sessions} + options.idle_workers;
  if (!users->one_each() || users->size() >= workers) return {};
  return Error{ErrorCode::invalid, "'" + options.worker_users + "' has " + std::to_string(users->size()) + " users, but there may be " + std::to_string(workers) +
                                       " workers (--max-sessions and --idle-workers together)"};
}

EarlyExit print_token() {
  const auto token = make_token();
  if (!token) {
    std::fprintf(stderr, "poold: %s\n", token.error().message.c_str());
    return {kExitFailure};
  }
  std::printf("%s\ntokens = [\"%s\"]\n", token->c_str(), hash_text(hash_token(*token)).c_str());
  std::fflush(stdout);
  std::fputs("The first line is the token: give it to the tenant for a file that only it can read (GPUPOOL_TOKEN_FILE). The second is\n"
             "for the [[tenant]] in poold's configuration: its SHA-256, which is enough because nobody can guess 256 random bits.\n",
             stderr);
  return {std::ferror(stdout) == 0 ? 0 : kExitFailure};
}

}  // namespace

Result<void> set_rdma(std::string_view name, const std::string& text, ServerOptions& options) {
  const transport::RdmaSetting* const setting = transport::find_rdma_setting(name);
  if (!setting) return Error{ErrorCode::invalid, "unknown key; the keys are those of poold --help, without '--rdma-'"};
  transport::RdmaOptions checked;
  if (!setting->read(text, checked)) return Error{ErrorCode::invalid, "'" + text + "' is not " + setting->values};
  options.rdma_settings[setting->variable] = text;
  return {};
}

unsigned half_of_host_memory_mib() {
  const auto pages = static_cast<uint64_t>(std::max(0l, ::sysconf(_SC_PHYS_PAGES))), size = static_cast<uint64_t>(std::max(0l, ::sysconf(_SC_PAGESIZE)));
  return static_cast<unsigned>(std::min<uint64_t>(kMostHostMemoryMib, (pages * size / 2) >> 20));
}

std::variant<ServerOptions, EarlyExit> parse_options(int count, char** words) {
  Words given;
  CLI::App app(kAbout, "poold");
  app.footer(kNotes);
  app.set_version_flag("--version", std::string("poold ") + kVersion);
  const CLI::Range seconds(kLeastSeconds, kMostSeconds);
  const auto* listen = app.add_option("--listen", given.listen,
                                      "where to listen, may be given several times: tcp://HOST:PORT (port 0 takes a "
                                      "free one), tls://HOST:PORT (encrypted), "
                                      "rdma://HOST:PORT (what is said over rdma begins over TCP), "
                                      "shm:///PATH or shm://@NAME (a Unix socket, for programs of this host "
                                      "and for containers that share the folder) [tcp://127.0.0.1:9700]")
                           ->allow_extra_args(false);
  const auto* no_shm =
      app.add_flag("--no-shm", given.no_shm, "no shared memory beside tcp: programs of this host use tcp too");
  app.add_option("--rdma", given.rdma, "yes: clients that wish it use rdma, where this host has a device; no: never [yes]")
      ->check(CLI::IsMember({"yes", "no"}));
  for (const auto& setting : transport::rdma_settings()) {
    app.add_option(std::string("--rdma-") + setting.name, given.rdma_settings[setting.name], setting.meaning);
  }
  const auto* device =
      app.add_option("--device", given.device,
                     "softgpu, nvidia (the system's libcuda.so.1), or a path to a device library "
                     "[softgpu]");
  const auto* port_file =
      app.add_option("--port-file", given.port_file, "write the port to this file when ready");
  const auto* admin_socket =
      app.add_option("--admin-socket", given.admin_socket,
                     "Unix socket for pool-admin, or none "
                     "[/run/poold/poold-PORT.sock for root, else $XDG_RUNTIME_DIR/poold/poold-PORT.sock]");
  const auto* metrics =
      app.add_option("--metrics", given.metrics,
                     "HOST:PORT where /metrics (Prometheus), /healthz and /readyz are answered over HTTP; without it they are not");
  const auto* idle =
      app.add_option("--idle-workers", given.idle_workers, "workers started ahead of clients [2]")
          ->check(CLI::Range(1u, kMostIdleWorkers));
  const auto* sessions = app.add_option("--max-sessions", given.max_sessions, "clients served at once [64]")
                             ->check(CLI::Range(1u, kMostSessions));
  const auto* image_cache = app.add_option("--image-cache-mib", given.image_cache_mib,
                                           "memory for module images that clients load again, 0 for none "
                                           "[1024]")
                                ->check(CLI::Range(0u, kMostImageCacheMib));
  const auto* code_cache = app.add_option("--code-cache-mib", given.code_cache_mib,
                                          "memory for machine code that softgpu or NVIDIA's driver has compiled, so that a tenant's "
                                          "later programs need not wait for it, at most 64 for each tenant; 0 for none [512]")
                               ->check(CLI::Range(0u, kMostCodeCacheMib));
  const auto* host_memory = app.add_option("--host-memory-for-idle-mib", given.host_memory_for_idle_mib,
                                           "memory quotas may exceed a GPU together: when it is full, memory of sessions that "
                                           "have nothing to do waits in so much host memory; 0: it never leaves the GPU [0]")
                                ->check(CLI::Range(0u, kMostHostMemoryMib));
  const auto* checkpoint_memory = app.add_option("--host-memory-for-checkpoints-mib", given.host_memory_for_checkpoints_mib,
                                                 "host memory that device memory of checkpointed programs may take (cuCheckpointProcess...), "
                                                 "0: none can be checkpointed [half of the host's]")
                                      ->check(CLI::Range(0u, kMostHostMemoryMib));
  const auto* hello_timeout = app.add_option("--hello-timeout", given.hello_timeout,
                                             "seconds a new connection has to introduce itself [5]")
                                  ->check(seconds);
  const auto* connections = app.add_option("--connections-per-second", given.connections_per_second,
                                           "new connections of one address (IPv4, a /64 of IPv6, or a local user) in the long run, twice as many "
                                           "at once; more are closed unread [4096]")
                                ->check(CLI::Range(1u, kMostConnectionsPerSecond));
  const auto* turn_limit = app.add_option("--turn-limit", given.turn_limit, "seconds after which a GPU that a program does not give back goes to the next one [1]")
                               ->check(seconds);
  const auto* dead_peer = app.add_option("--dead-peer-timeout", given.dead_peer_timeout,
                                         "seconds after which an unreachable client's session ends [15]")
                              ->check(seconds);
  const auto* worker_users = app.add_option("--worker-users,--worker-user", given.worker_users,
                                            "the users that workers become when poold runs as root: a name or number for all, or a range such as "
                                            "70000-70999, of which each session gets one of its own [nobody]");
  const auto* worker_memory = app.add_option("--worker-memory-mib", given.worker_limits.memory_mib,
                                             "host memory that one worker may take, where poold's cgroup is delegated to it: with softgpu that includes the memory of "
                                             "its GPUs; a worker that takes more is killed; 0: no limit [0]")
                                  ->check(CLI::Range(0u, kMostHostMemoryMib));
  const auto* worker_threads = app.add_option("--worker-threads", given.worker_limits.threads, "threads and processes that one worker may have, likewise; 0: no limit [4096]")
                                   ->check(CLI::Range(0u, kMostWorkerThreads));
  const auto* worker_cpus = app.add_option("--worker-cpus", given.worker_limits.cpus,
                                           "processors whose time one worker may take, likewise; 0: no limit, and where there are too few all workers get equal parts [0]")
                                ->check(CLI::Range(0u, kMostWorkerCpus));
  const auto* peers = app.add_option("--peers", given.peers,
                                     "networks of other poolds that copies between servers may go to directly, e.g. "
                                     "10.1.0.0/16,fd00::/8; any (but loopback); none: through the client [none]");
  const auto* sandbox = app.add_option("--sandbox", given.sandbox,
                                       "on: workers are confined; log: system calls that they may not make are made, and the kernel logs them; "
                                       "off: not at all, for finding out whether a device library needs something that they may not do [on]")
                            ->check(CLI::IsMember({"on", "off", "log"}));
  const auto* no_sandbox = app.add_flag("--no-sandbox", given.no_sandbox, "the same as --sandbox=off");
  app.add_flag("--check-host", given.check_host,
               "print which layers of the workers' confinement hold on this host, with the options given, and exit: with 0 if all do, else 1");
  app.add_option("--config", given.config,
                 "TOML file with the same keys, and the tenants; the command line wins. SIGHUP has the tenants read again");
  const auto* tls_certificate =
      app.add_option("--tls-certificate", given.tls_certificate, "for tls:// addresses: this server's certificate and its chain (PEM)");
  const auto* tls_key = app.add_option("--tls-key", given.tls_key, "its private key (PEM), which only poold need be able to read");
  const auto* tls_client_ca = app.add_option("--tls-client-ca", given.tls_client_ca,
                                             "authorities of the clients' certificates (PEM); without it clients show tokens only");
  const auto* audit_file =
      app.add_option("--audit-file", given.audit_file, "append a line of JSON for each session's start, end and denial to this file");
  app.add_flag("--make-token", given.make_token, "print a new token and its hash for a tenant in the configuration, and exit");
  const auto* level =
      app.add_option("--log-level", given.log_level, std::string("one of ") + kLogLevels + " [info]");
  const auto* format =
      app.add_option("--log-format", given.log_format, std::string("one of ") + kLogFormats + " [text]");
  const auto* insecure = app.add_flag("--insecure", given.insecure,
                                      "listen beyond loopback without TLS or without credentials of tenants: everyone on that network is trusted");
  const auto* users_at_paths = app.add_flag("--users-at-paths", given.users_at_paths,
                                            "tenants' users need no token on shm:///PATH sockets either; not where containers share one, "
                                            "since their users have the numbers of this host's");
  const PoolWords pool(app);
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return EarlyExit{app.exit(error)};
    return mistake(describe_mistake(app, error) + "; see poold --help");
  }

  if (given.make_token) return print_token();
  ServerOptions options;
  options.config_file = given.config;
  if (!given.config.empty()) {
    if (const auto read = read_config(given.config, options); !read) return mistake(read.error().message);
  }
  if (listen->count() > 0) {
    options.listen.clear();
    for (const std::string& text : given.listen) {
      const auto endpoint = transport::Endpoint::parse(text);
      if (!endpoint) return mistake("--listen: " + endpoint.error().message);
      options.listen.push_back(*endpoint);
    }
  }
  if (no_shm->count() > 0) options.shared_memory = !given.no_shm;
  if (!given.rdma.empty()) options.rdma = given.rdma == "yes";
  for (const auto& [name, text] : given.rdma_settings) {
    if (app.count("--rdma-" + name) == 0) continue;
    if (const auto set = set_rdma(name, text, options); !set) return mistake("--rdma-" + name + ": " + set.error().message);
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
  if (checkpoint_memory->count() > 0) options.host_memory_for_checkpoints_mib = given.host_memory_for_checkpoints_mib;
  if (code_cache->count() > 0) options.code_cache_mib = given.code_cache_mib;
  if (image_cache->count() > 0) options.image_cache_mib = given.image_cache_mib;
  if (hello_timeout->count() > 0) options.hello_timeout = to_milliseconds(given.hello_timeout);
  if (connections->count() > 0) options.connections_per_second = given.connections_per_second;
  if (turn_limit->count() > 0) options.turn_limit = to_milliseconds(given.turn_limit);
  if (dead_peer->count() > 0) options.dead_peer_timeout = to_milliseconds(given.dead_peer_timeout);
  if (level->count() > 0 && !log::parse(given.log_level, options.log_level)) {
    return mistake("--log-level: '" + given.log_level + "' is not one of " + kLogLevels);
  }
  if (format->count() > 0 && !log::parse(given.log_format, options.log_format)) {
    return mistake("--log-format: '" + given.log_format + "' is not one of " + kLogFormats);
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
  if (const auto checked = check_worker_users(options); !checked) return mistake("--worker-users: " + checked.error().message);
  if (peers->count() > 0) options.peers = given.peers;
  if (const auto applied = pool.apply(options.pool); !applied) return mistake(applied.error().message);
  if (const auto checked = check_pool(options.pool); !checked) return mistake(checked.error().message);
  if (options.peers.empty()) options.peers = "none";
  if (const auto networks = Networks::parse(options.peers); !networks) return mistake("--peers: " + networks.error().message);
  const auto any = [&](auto&& condition) { return std::any_of(options.listen.begin(), options.listen.end(), condition); };
  if (!options.port_file.empty() && !any([](const auto& endpoint) { return endpoint.scheme != "shm"; })) {
    return mistake("--port-file: there is no port without listening on tcp:// or rdma://");
  }
  const auto everywhere = [](const auto& endpoint) { return endpoint.host == "0.0.0.0" || endpoint.host == "::" || endpoint.host == "[::]"; };
  if (!options.pool.schedulers.empty() && options.pool.addresses.empty() && any(everywhere)) {
    return mistake("[pool] addresses: say how clients reach this host, e.g. tls://" + options.pool.name + ":9700, for it listens on all its addresses");
  }
  if (!options.rdma && any([](const auto& endpoint) { return endpoint.scheme == "rdma"; })) {
    return mistake("--listen rdma://...: rdma is switched off by --rdma no");
  }
  if (any([](const auto& endpoint) { return endpoint.scheme == "tls"; }) && (options.tls.certificate.empty() || options.tls.key.empty())) {
    return mistake("--listen tls://...: give the server's certificate and key with --tls-certificate and --tls-key (or in [tls])");
  }
  return options;
}

}  // namespace gpupool::server
