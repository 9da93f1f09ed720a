#include "server/poold/daemon.h"

#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <optional>

#include "common/files/port_file.h"
#include "common/log/log.h"
#include "common/version.h"
#include "protocol/transport/tls/certificate_watch.h"
#include "protocol/wire/migration.h"
#include "server/poold/acceptor/acceptor.h"
#include "server/poold/admin/administration.h"
#include "server/poold/admin/audit.h"
#include "server/poold/admin_listeners.h"
#include "server/poold/configuration_warnings.h"
#include "server/poold/counters.h"
#include "server/poold/lease_sessions.h"
#include "server/poold/listeners.h"
#include "server/poold/monitors/monitors.h"
#include "server/poold/monitors/view.h"
#include "server/poold/node/agent.h"
#include "server/poold/node_report.h"
#include "server/poold/pool_settings.h"
#include "server/poold/refusals.h"
#include "server/poold/reload.h"
#include "server/poold/upgrade/upgrade.h"
#include "server/poold/workers/checkpoints.h"
#include "server/poold/workers/worker_pool.h"
#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {
namespace {

class Daemon {
 public:
  Daemon(const ServerOptions& options, Prepared prepared)
      : options_(options),
        previous_(prepared.previous),
        addresses_(prepared.listeners),
        cgroups_(std::move(prepared.cgroups)),
        end_signals_(context_, SIGTERM, SIGINT),
        reload_signal_(context_, SIGHUP),
        audit_(options.audit_file),
        tenants_(options.tenants,
                 options.pool.configured() ? Tenants::Anonymous::refused : Tenants::Anonymous::served),
        pool_(context_,
              pool_settings(options, std::move(prepared.program), cgroups_, std::move(prepared.suspended)),
              tenants_,
              [this](Client client, const Refusal& refusal) {
                // The client of a suspended session waits: it is not denied.
                if (refusal.status == control::HelloReply::SUSPENDED)
                  return acceptor_.refuse(std::move(client), refusal);
                if (!client.peer && client.bulk_token.empty()) administration_.denied(client.tenant);
                refuse(std::move(client), refusal);
              }),
        acceptor_(
            context_, std::move(prepared.listeners), options.hello_timeout, options.connections_per_second,
            [this](Client client, const Credentials& shown) { admit(std::move(client), shown); },
            [this](Client client, const Refusal& refusal) { refuse(std::move(client), refusal); },
            [this](const wire::PeerHello& hello) { return pool_.find_peer_copy(hello); }),
        leases_(context_, tenants_, options.pool.name, previous_ ? previous_->leases().boot() : new_boot(),
                {}, host_of_leases(pool_, administration_)),
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
                        options.pool.configured() ? &agent_ : nullptr,
                        nvml_library(options.nvml, options.device)),
        monitors_(
            context_, {},
            {.describe = [this](const Client& client) { return monitor_devices(monitor_sources(), client); },
             .look = [this](const Client& client) { return monitor_state(monitor_sources(), client); }}),
        checkpoints_(context_, pool_.state_changes(),
                     [this](Client client, const Refusal& refusal) { refuse(std::move(client), refusal); }),
        refusals_(context_, acceptor_, audit_),
        upgrade_(context_, std::move(prepared.arguments),
                 {.hold_work = [this] { pool_.pause_suspensions(); },
                  .release_work = [this] { pool_.suspensions().unpause(); },
                  .obstacle = [this] { return upgrade_obstacle(); },
                  .state = [this] { return state(); },
                  .close_doors = [this] { acceptor_.pause(); },
                  .has_waiting = [this] { return has_waiting(); },
                  .give_up_waiting =
                      [this] { acceptor_.drop_pending(), pool_.give_up_waiting(), refusals_.finish(); },
                  .end_spare_workers = [this] { end_spare_workers(); },
                  .has_spare_workers = [this] { return pool_.has_spare_workers(); },
                  .is_closing = [this] { return !closer_.idle(); },
                  .undo = [this] { undo_upgrade(); }}) {}

  int run() {
    if (previous_) audit_.restore(*previous_);
    if (const auto opened = audit_.open(); !opened) return fail(opened.error().message);
    if (options_.users_at_paths) acceptor_.trust_users_at_paths();
    if (const auto begun = begin_tls(); !begun) return fail(begun.error().message);
    if (const auto read = read_keys(options_.pool.public_keys); !read) return fail(read.error().message);
    pool_.on_session_start([this](const SessionView& session) {
      const Tenant* const tenant = tenants_.find(session.client.tenant);
      audit_.started(session, tenant ? tenant->quota : quota::Quota{});
      leases_.counters().session_began(lease::from_hexadecimal(session.client.lease));
    });
    pool_.on_session_end([this](const SessionView& session, const std::string& reason, bool crashed) {
      audit_.ended(session, reason, crashed);
      leases_.counters().session_ended(usage_of(session, pool_.devices()));
      leases_.post_cleanup();
    });
    pool_.suspensions().keep_when(
        [this](const SuspendedSession& session) { return leases_.is_suspended(session.header.lease()); });
    pool_.suspensions().on_event([this](const auto& event, const auto&... what) {
      audit_.suspension(event, what...);
      leases_.post_cleanup();
    });
    pool_.on_break([this](const auto& session, const auto& event) { audit_.broken(session, event); });
    pool_.refuse_when([this] { return refuses_sessions(); });
    administration_.on_upgrade([this](Upgrade::Begun begun) { upgrade_.begin(std::move(begun)); });
    await_end_signal();
    await_reload_signal();
    if (previous_) {
      if (const auto restored = restore(); !restored) return fail(restored.error().message);
    }
    if (const auto served = serve_administration(administration_, options_, addresses_); !served) {
      if (!previous_) return fail(served.error().message);
      degrade(served.error().message);
    }
    if (previous_) {
      open();
      audit_.upgraded(*previous_);
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
  // The state that an upgrade hands to the new program.
  upgrade::State state() {
    upgrade::State state;
    state.set_version(kVersion);
    acceptor_.for_each_listener(
        [&](const transport::Listener& listener) { save(listener, options_, state); });
    if (cgroups_) state.set_cgroup(cgroups_->group().folder);
    pool_.save(*state.mutable_pool());
    leases_.save(*state.mutable_leases());
    administration_.save(state);
    audit_.save(state);
    save_counters(state, acceptor_, pool_);
    state.set_format(format_needed(state));
    return state;
  }

  std::string upgrade_obstacle() const {
    return audit_.written() ? pool_.suspensions().unfinished() : kAuditStalled;
  }
  bool has_waiting() const { return acceptor_.has_pending() || pool_.has_waiting() || !audit_.written(); }

  // The leases come first, because their tenants must exist; then quotas, which sessions have.
  Result<void> restore() {
    leases_.restore(previous_->leases());
    pool_.restore_devices(previous_->pool());
    administration_.restore(*previous_);
    const auto migrated = [this](const SessionView& session, const std::string& to, const auto& outcome) {
      audit_.migration_ended(session.number, to, outcome);
      if (outcome && !outcome->migrated) leases_.migration_failed(session.client.tenant, outcome->reason);
    };
    restore_counters(*previous_, acceptor_, pool_);
    if (auto restored = pool_.restore(previous_->pool(), migrated); !restored) return restored;
    end_revoked();
    return {};
  }

  void end_spare_workers() {
    administration_.pause();
    monitors_.close();
    checkpoints_.close();
    pool_.pause();
  }

  void undo_upgrade() {
    pool_.unpause();
    if (const auto served = serve_administration(administration_, options_, addresses_); !served)
      log::warning("no_admin_socket", {{"reason", served.error().message}});
    acceptor_.open();
  }

  // Called when the first worker is ready. Accepts clients before writing the port file, whose readers may
  // connect at once.
  void open() {
    if (stopping_) return;
    acceptor_.open();
    if (!options_.port_file.empty()) {
      if (const auto written = write_port_file(options_.port_file, addresses_.port); !written) {
        if (!previous_) return give_up(written.error().message);
        degrade(written.error().message);
      }
      port_file_written_ = true;
    }
    log_listening(options_, addresses_.text);
    tenants_.on_change([this](const Tenant& tenant) { warn_of_quota(tenant, pool_.devices()); });
    warn_of_users(options_, tenants_.all());
    if (const auto started = agent_.start(); !started) {
      const std::string why = "[pool]: " + started.error().message;
      previous_ ? degrade(why) : give_up(why);
    }
  }

  // After an upgrade: goes on without a part that cannot be started, since ending would end all sessions.
  void degrade(const std::string& why) {
    log::error("upgraded_in_part", {{"reason", why}, {"effect", "poold goes on without it"}});
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
    const auto admitted = leases_.admit(token, client.resume.has_value());
    if (!admitted) return refuse(std::move(client), {control::HelloReply::DENIED, admitted.error().message});
    client.tenant = admitted->tenant;
    client.lease = admitted->lease;
    client.credential.kind = Credential::Kind::lease;
    if (admitted->suspended && !client.resume && !client.monitor)
      return acceptor_.refuse(std::move(client), {control::HelloReply::SUSPENDED, kLeaseSuspended});
    serve(std::move(client));
  }

  void serve(Client client) {
    if (client.resume && client.resume->link >= wire::kReturnsLink) return pool_.returns(std::move(client));
    if (client.resume) return pool_.resume(std::move(client));
    if (client.checkpoint) return checkpoints_.admit(std::move(client));
    if (!client.monitor) return pool_.assign(std::move(client));
    if (!monitors_.admit(client))
      refuse(std::move(client), {control::HelloReply::NO_DEVICE, "no GPU to monitor"});
  }

  std::optional<Refusal> refuses_sessions() const {
    if (!audit_.stalled()) return std::nullopt;
    return Refusal{control::HelloReply::BUSY, kAuditStalled + "; try again later, or contact its operator"};
  }

  MonitorSources monitor_sources() const {
    return {pool_, tenants_, administration_.ended(), administration_.sensors()};
  }

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
    certificates_.emplace(context_, options_.tls, options_.tls_interval,
                          [this](const auto& read) { renew_certificate(read); });
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

}  // namespace

int serve(const ServerOptions& options, Prepared prepared) {
  Daemon daemon(options, std::move(prepared));
  return daemon.run();
}

}  // namespace gpupool::server
