#include "server/poold/daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <set>
#include <system_error>

#include "common/files/port_file.h"
#include "common/log/log.h"
#include "common/version.h"
#include "protocol/control/admin_address.h"
#include "protocol/environment.h"
#include "protocol/transport/rdma_options.h"
#include "protocol/transport/tls/certificate_watch.h"
#include "server/poold/acceptor/acceptor.h"
#include "server/poold/admin/administration.h"
#include "server/poold/admin/audit.h"
#include "server/poold/admin/quota_messages.h"
#include "server/poold/check_host.h"
#include "server/poold/configuration_warnings.h"
#include "server/poold/install_paths.h"
#include "server/poold/listeners.h"
#include "server/poold/monitors/monitors.h"
#include "server/poold/monitors/view.h"
#include "server/poold/node/agent.h"
#include "server/poold/node_report.h"
#include "server/poold/refusals.h"
#include "server/poold/reload.h"
#include "server/poold/upgrade/upgrade.h"
#include "server/poold/workers/checkpoints.h"
#include "server/poold/workers/worker_pool.h"
#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {
namespace {

constexpr std::chrono::milliseconds kLastLines{1'000};  // limit for the final log flush

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int fail(const std::string& why) {
  std::fprintf(stderr, "poold: %s\n", why.c_str());
  return kExitFailure;
}

// Returns null without a sandbox or without a delegated cgroup. A host without cgroup delegation is reported
// with the confinement layers.
std::shared_ptr<Cgroups> open_cgroups(const ServerOptions& options, const upgrade::State* previous) {
  if (options.sandbox == Sandbox::off) return nullptr;
  if (previous && !previous->cgroup().empty()) {
    std::set<std::string> in_use;
    for (const auto& session : previous->pool().sessions()) in_use.insert(session.cgroup());
    return Cgroups::take_over(previous->cgroup(), options.worker_limits, in_use);
  }
  auto opened = Cgroups::open(options.worker_limits);
  if (opened) return std::move(*opened);
  if (opened.error().code != ErrorCode::unavailable)
    log::warning("confinement", {{"missing", "control group"}, {"reason", opened.error().message}});
  return nullptr;
}

// Exports the RDMA options to the workers' environment. They override variables that poold inherited.
void export_rdma_settings(const ServerOptions& options) {
  for (const auto& [variable, text] : options.rdma_settings) {
    if (!set_environment(variable.c_str(), text)) throw std::bad_alloc();
  }
}

class Daemon {
 public:
  // `previous`: what this process's previous program knew; null: there was none.
  Daemon(const ServerOptions& options, const std::vector<std::string>& arguments, Listeners listeners,
         WorkerProgram program, std::shared_ptr<Cgroups> cgroups, const upgrade::State* previous)
      : options_(options),
        previous_(previous),
        addresses_(listeners),
        cgroups_(cgroups),
        end_signals_(context_, SIGTERM, SIGINT),
        reload_signal_(context_, SIGHUP),
        audit_(options.audit_file),
        tenants_(options.tenants,
                 options.pool.configured() ? Tenants::Anonymous::refused : Tenants::Anonymous::served),
        pool_(context_,
              {.program = std::move(program),
               .cgroups = std::move(cgroups),
               .idle_workers = options.idle_workers,
               .max_sessions = options.max_sessions,
               .image_cache_bytes = uint64_t{options.image_cache_mib} << 20,
               .code_cache_bytes = uint64_t{options.code_cache_mib} << 20,
               .driver_cache = options.device != "softgpu",
               .host_memory_for_idle = uint64_t{options.host_memory_for_idle_mib} << 20,
               .host_memory_for_checkpoints = uint64_t{options.host_memory_for_checkpoints_mib} << 20,
               .dead_peer_timeout = options.dead_peer_timeout,
               .resume_timeout = options.resume_timeout,
               .peers = *Networks::parse(options.peers),
               .turns = {.yield_timeout = options.turn_limit},
               .refuses = [this] { return refuses_sessions(); }},
              tenants_,
              [this](Client client, const Refusal& refusal) {
                if (!client.peer && client.bulk_token.empty()) administration_.denied(client.tenant);
                refuse(std::move(client), refusal);
              }),
        acceptor_(
            context_, std::move(listeners), options.hello_timeout, options.connections_per_second,
            [this](Client client, const Credentials& shown) { admit(std::move(client), shown); },
            [this](Client client, const Refusal& refusal) { refuse(std::move(client), refusal); },
            [this](const wire::PeerHello& hello) { return pool_.find_peer_copy(hello); }),
        leases_(context_, tenants_, options.pool.name, previous ? previous->leases().boot() : new_boot(), {},
                {.devices = [this]() -> const std::vector<control::Device>& { return pool_.devices(); },
                 .sessions = [this](const std::string& tenant) { return pool_.sessions_of(tenant); },
                 .describe_breaks = [this](const auto& tenant,
                                           auto& told) { server::describe_breaks(pool_, tenant, told); },
                 .end_sessions = [this](const auto&... order) { pool_.end_sessions(order...); },
                 .move_sessions = [this](const auto&... order) { pool_.request_migrations(order...); },
                 .now = now_ms}),
        agent_(context_, options.pool, leases_,
               {.inventory =
                    [this, &options] {
                      return inventory_of(pool_.devices(), options.pool.addresses.empty()
                                                               ? addresses_.remote
                                                               : options.pool.addresses);
                    },
                .describe_state =
                    [this](pool::NodeReport& report) {
                      server::describe_state(administration_.snapshot(), stopping_, report);
                    }}),
        administration_(context_, pool_, acceptor_, tenants_, audit_,
                        options.pool.configured() ? &agent_ : nullptr),
        monitors_(
            context_, {},
            {.describe = [this](const Client& client) { return monitor_devices(monitor_sources(), client); },
             .look = [this](const Client& client) { return monitor_state(monitor_sources(), client); }}),
        checkpoints_(context_, pool_.state_changes(),
                     [this](Client client, const Refusal& refusal) { refuse(std::move(client), refusal); }),
        refusals_(context_, acceptor_, audit_),
        upgrade_(context_, arguments,
                 {.state = [this] { return state(); },
                  .close_doors = [this] { acceptor_.pause(); },
                  .has_waiting = [this] { return acceptor_.has_pending() || pool_.has_waiting(); },
                  .give_up_waiting = [this] { give_up_waiting(); },
                  .end_spare_workers = [this] { end_spare_workers(); },
                  .has_spare_workers = [this] { return pool_.has_spare_workers() || !closer_.idle(); },
                  .undo = [this] { undo_upgrade(); }}) {}

  int run() {
    if (const auto opened = audit_.open(); !opened) return fail(opened.error().message);
    if (options_.users_at_paths) acceptor_.trust_users_at_paths();
    if (const auto begun = begin_tls(); !begun) return fail(begun.error().message);
    if (const auto read = read_keys(options_.pool.public_keys); !read) return fail(read.error().message);
    pool_.on_session_start([this](const SessionView& session) {
      const Tenant* const tenant = tenants_.find(session.client.tenant);
      audit_.started(session, tenant ? tenant->quota : quota::Quota{});
    });
    pool_.on_session_end([this](const SessionView& session, const std::string& reason, bool crashed) {
      audit_.ended(session, reason, crashed);
      leases_.post_cleanup();
    });
    pool_.on_break([this](const auto& session, const auto& event) { audit_.broken(session, event); });
    administration_.on_upgrade([this](Upgrade::Begun begun) { upgrade_.begin(std::move(begun)); });
    await_end_signal();
    await_reload_signal();
    if (previous_) {
      if (const auto restored = restore(); !restored) return fail(restored.error().message);
    }
    if (const auto served = serve_administration(); !served) return fail(served.error().message);
    if (previous_) {
      open();
      audit_.upgraded(previous_->version(), static_cast<size_t>(previous_->pool().sessions_size()));
    } else {
      pool_.start([this](const Result<void>& first) {
        if (!first) return give_up(first.error().message);
        open();
      });
    }
    unblock_signals();  // the previous program has blocked them
    context_.run();
    if (port_file_written_) ::unlink(options_.port_file.c_str());
    log::info("stopped", {{"status", status_}});
    return status_;
  }

 private:
  // What the next program of this process must know.
  upgrade::State state() const {
    upgrade::State state;
    state.set_format(kStateFormat);
    state.set_version(kVersion);
    size_t index = 0;
    acceptor_.for_each_listener([&](const transport::Listener& listener) {
      upgrade::Listener& saved = *state.add_listeners() = save(listener);
      if (index < options_.listen.size()) saved.set_configured(options_.listen[index].text());
      ++index;
    });
    if (cgroups_) state.set_cgroup(cgroups_->group().folder);
    pool_.save(*state.mutable_pool());
    leases_.save(*state.mutable_leases());
    administration_.save(state);
    for (const std::string& name : tenants_.changed()) {
      upgrade::ChangedQuota& changed = *state.add_quotas();
      changed.set_tenant(name);
      *changed.mutable_quota() = to_message(tenants_.find(name)->quota);
    }
    return state;
  }

  // The leases come first, because their tenants must exist.
  Result<void> restore() {
    leases_.restore(previous_->leases());
    if (auto restored = pool_.restore(previous_->pool()); !restored) return restored;
    administration_.restore(*previous_);
    for (const upgrade::ChangedQuota& changed : previous_->quotas()) {
      if (const auto set = tenants_.set_quota(changed.tenant(), quota_of(changed.quota())); !set)
        log::warning("quota_not_kept", {{"tenant", changed.tenant()}, {"reason", set.error().message}});
    }
    return {};
  }

  void give_up_waiting() {
    acceptor_.drop_pending();
    pool_.give_up_waiting();
  }

  void end_spare_workers() {
    administration_.pause();
    monitors_.close();
    checkpoints_.close();
    pool_.pause();
  }

  void undo_upgrade() {
    pool_.unpause();
    if (const auto served = serve_administration(); !served)
      log::warning("no_admin_socket", {{"reason", served.error().message}});
    acceptor_.open();
  }

  // Fails if --admin-socket or --metrics cannot be served. A failure of the default socket is only a warning.
  Result<void> serve_administration() {
    const uint64_t name = addresses_.port != 0 ? addresses_.port : static_cast<uint64_t>(::getpid());
    const bool asked = !options_.admin_socket.empty();
    const std::string path = asked ? options_.admin_socket : admin::default_socket(name);
    if (options_.admin_socket != "none" && !administration_.serve_kept_socket(path)) {
      const auto served = administration_.serve_socket(path);
      if (!served && asked) return served;
      if (!served) log::warning("no_admin_socket", {{"reason", served.error().message}});
    }
    if (options_.metrics.empty()) return {};
    return administration_.serve_metrics(options_.metrics);
  }

  // Called when the first worker is ready. Accepts clients before writing the port file, whose readers may
  // connect at once.
  void open() {
    if (stopping_) return;
    acceptor_.open();
    if (!options_.port_file.empty()) {
      if (const auto written = write_port_file(options_.port_file, addresses_.port); !written) {
        return give_up(written.error().message);
      }
      port_file_written_ = true;
    }
    log::info("listening", {{"address", addresses_.text},
                            {"device", options_.device},
                            {"rdma", rdma_offer(options_)},
                            {"version", kVersion},
                            {"max_sessions", options_.max_sessions}});
    tenants_.on_change([this](const Tenant& tenant) { warn_of_quota(tenant, pool_.devices()); });
    warn_of_users(options_, tenants_.all());
    if (const auto started = agent_.start(); !started) give_up("[pool]: " + started.error().message);
  }

  void admit(Client client, const Credentials& shown) {
    // The connection gets its session's tenant.
    if (client.peer || !client.bulk_token.empty()) return pool_.attach(std::move(client));
    if (lease::is_token(shown.token)) return admit_lease(std::move(client), shown.token);
    const auto admission = authenticate(tenants_, shown);
    if (!admission)
      return refuse(std::move(client), {control::HelloReply::DENIED, admission.error().message});
    client.tenant = admission->tenant->name;
    client.credential = admission->by;
    serve(std::move(client));
  }

  void admit_lease(Client client, const std::string& token) {
    const auto admitted = leases_.admit(token);
    if (!admitted) return refuse(std::move(client), {control::HelloReply::DENIED, admitted.error().message});
    client.tenant = admitted->tenant;
    client.lease = admitted->lease;
    client.credential.kind = Credential::Kind::lease;
    serve(std::move(client));
  }

  void serve(Client client) {
    if (client.resume) return pool_.resume(std::move(client));
    if (client.checkpoint) return checkpoints_.admit(std::move(client));
    if (!client.monitor) return pool_.assign(std::move(client));
    if (!monitors_.admit(client))
      refuse(std::move(client), {control::HelloReply::NO_DEVICE, "no GPU to monitor"});
  }

  std::optional<Refusal> refuses_sessions() const {
    if (!audit_.stalled()) return std::nullopt;
    return Refusal{control::HelloReply::BUSY,
                   "the server cannot write its audit file; try again later, or contact its operator"};
  }

  MonitorSources monitor_sources() const { return {pool_, tenants_, administration_.ended()}; }

  void refuse(Client client, const Refusal& refusal) { refusals_.refuse(std::move(client), refusal); }

  void give_up(const std::string& why) {
    status_ = fail(why);
    stop();
  }

  void await_end_signal() {
    end_signals_.async_wait([this](const asio::error_code& status, int signal) {
      if (status) return;
      log::info("stopping", {{"signal", signal}});
      stop();
    });
  }

  void await_reload_signal() {
    reload_signal_.async_wait([this](const asio::error_code& status, int) {
      if (status) return;
      await_reload_signal();
      reload();
    });
  }

  Result<void> begin_tls() {
    if (!listens_with_tls(options_)) return {};
    auto context = transport::tls::Context::server(options_.tls);
    if (!context) return context.error();
    acceptor_.use_tls(std::move(*context));
    certificates_.emplace(context_, options_.tls, [this](const auto& read) { renew_certificate(read); });
    return {};
  }

  // Called when the certificate files have changed. Open connections keep the old certificate.
  void renew_certificate(const transport::tls::CertificateWatch::Read& read) {
    if (!read) {
      return log::warning("certificate_not_renewed", {{"reason", read.error().message},
                                                      {"note", "the previous certificate stays in use"}});
    }
    acceptor_.use_tls(*read);
    log::info("certificate_renewed", {{"file", options_.tls.certificate}});
  }

  Result<void> read_keys(const std::vector<std::string>& files) {
    auto keys = read_public_keys(files);
    if (!keys) return keys.error();
    leases_.use_keys(std::move(*keys));
    return {};
  }

  // Handles SIGHUP: reopens the audit file and reads tenants, certificates and the pool's public keys again.
  // An error in a file leaves all settings unchanged. Without --config it only reopens the audit file and
  // reads the certificate.
  void reload() {
    if (const auto opened = audit_.open(); !opened)
      log::error("audit_failed", {{"reason", opened.error().message}});
    if (options_.config_file.empty()) {
      if (listens_with_tls(options_)) return renew_certificate(transport::tls::Context::server(options_.tls));
      return log::warning("nothing_to_reload", {{"reason", "poold was started without --config"}});
    }
    auto read = read_again(options_, addresses_.foreign && !leases_.accepts_leases());
    if (!read) return log::error("reload_failed", {{"reason", read.error().message}});
    if (read->tls) acceptor_.use_tls(std::move(read->tls));
    leases_.use_keys(std::move(read->keys));
    tenants_.replace(std::move(read->options.tenants));
    warn_of_users(options_, tenants_.all());
    audit_.reloaded(options_.config_file, tenants_.all().size());
    end_revoked();
  }

  // Ends sessions and connections whose tenant or credential is no longer in the configuration.
  void end_revoked() {
    const auto why = [this](const Client& client) {
      return revoked(tenants_, client.tenant, client.credential);
    };
    pool_.end_sessions(why, log::Level::warning);
    const auto is_revoked = [&](const Client& client) { return why(client).has_value(); };
    monitors_.drop_if(is_revoked);
    checkpoints_.drop_if(is_revoked);
  }

  void stop() {
    if (std::exchange(stopping_, true)) return;
    upgrade_.stop();
    certificates_.reset();
    acceptor_.close();
    agent_.stop();
    leases_.stop();
    monitors_.close();
    checkpoints_.close();
    refusals_.finish();
    administration_.close();
    pool_.stop([this] {
      end_signals_.cancel();
      reload_signal_.cancel();
      context_.stop();
    });
  }

  const ServerOptions& options_;
  const upgrade::State* const previous_;
  const Addresses addresses_;
  const std::shared_ptr<Cgroups> cgroups_;  // null: none
  asio::io_context context_{1};
  DescriptorCloser closer_{context_};
  asio::signal_set end_signals_;
  asio::signal_set reload_signal_;
  Audit audit_;
  Tenants tenants_;
  WorkerPool pool_;
  Acceptor acceptor_;
  std::optional<transport::tls::CertificateWatch> certificates_;  // none: no tls:// address
  Leases leases_;
  Agent agent_;
  Administration administration_;
  Monitors monitors_;
  Checkpoints checkpoints_;
  Refusals refusals_;
  Upgrade upgrade_;
  bool stopping_ = false;
  bool port_file_written_ = false;
  int status_ = 0;
};

// The parts of a start that can fail, without effect on others: for a program that is about to be installed.
int check_upgrade(const ServerOptions& options, const upgrade::State& state) {
  if (const auto keys = read_public_keys(options.pool.public_keys); !keys) return fail(keys.error().message);
  if (listens_with_tls(options)) {
    if (const auto tls = transport::tls::Context::server(options.tls); !tls) return fail(tls.error().message);
  }
  if (const auto checked = check_listeners(options, state.listeners()); !checked)
    return fail(checked.error().message);
  std::puts(kVersion);
  return std::fflush(stdout) == 0 ? 0 : kExitFailure;
}

}  // namespace

int run_daemon(const ServerOptions& options, const std::vector<std::string>& arguments) {
  (void)::signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit();
  const auto device = device_library_path(options.device);
  if (!device) return fail(device.error().message);
  const auto program = worker_program_path();
  if (!program) return fail(program.error().message);
  // Workers of the same user must not read this process's secrets from its memory.
  if (options.sandbox != Sandbox::off) ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  if (const auto checked = check_secrets(options, *device); !checked) return fail(checked.error().message);
  const auto received = receive_state();
  if (!received) return fail(received.error().message);
  const upgrade::State* const previous = *received ? &(*received)->state : nullptr;
  if (previous && (*received)->only_check) return check_upgrade(options, *previous);
  PreviousListeners listening = previous ? previous->listeners() : PreviousListeners();
  auto listeners = open_listeners(options, listening);
  if (!listeners) return fail(listeners.error().message);
  log::start(STDERR_FILENO, options.log_level, options.log_format, "poold");
  const auto warn_of_confinement = check_confinement(options, *device);
  log::write_in_background();
  warn_of_confinement();
  if (options.shared_memory) listen_beside_tcp(options, *listeners, listening);
  close_previous(listening);
  if (previous) close_on_exec(*previous);
  export_rdma_settings(options);
  std::optional<Daemon> daemon;
  daemon.emplace(options, arguments, std::move(*listeners),
                 WorkerProgram{.program = *program,
                               .device = *device,
                               .user = options.worker_users,
                               .sandbox = options.sandbox,
                               .tls = listens_with_tls(options),
                               .rdma = options.rdma,
                               .log_level = options.log_level},
                 open_cgroups(options, previous), previous);
  const int status = daemon->run();
  daemon.reset();
  (void)log::flush(kLastLines);
  return status;
}

}  // namespace gpupool::server
