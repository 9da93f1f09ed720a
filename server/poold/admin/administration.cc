#include "server/poold/admin/administration.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"
#include "common/text/gpu_uuid.h"
#include "server/poold/admin/dump.h"
#include "server/poold/admin/metrics.h"
#include "server/tenants/quota_messages.h"

namespace gpupool::server {

Administration::Administration(asio::io_context& context, WorkerPool& pool, const Acceptor& acceptor,
                               Tenants& tenants, Audit& audit, const Agent* agent, const std::string& nvml)
    : context_(context),
      pool_(pool),
      acceptor_(acceptor),
      tenants_(tenants),
      audit_(audit),
      agent_(agent),
      sensors_(nvml) {
  pool.on_session_end([this](const SessionView& session, const std::string&, bool) { ended_.add(session); });
  tenants.on_removal([this](const std::string& lease) {
    ended_.merge_into_tenant(lease, lease.substr(0, lease.rfind('/')));
  });
}

Result<void> Administration::serve_socket(const std::string& path) {
  auto socket = OwnedSocket::listen(path);
  if (!socket) return socket.error();
  serve(std::move(*socket));
  log::info("admin_socket", {{"path", path}});
  return {};
}

bool Administration::serve_kept_socket(const std::string& path) {
  const auto socket = std::exchange(kept_socket_, nullptr);
  if (!socket || socket->path() != path) return false;  // its destructor removes the socket
  serve(std::move(*socket));
  return true;
}

void Administration::serve(OwnedSocket socket) {
  service_ = std::make_unique<AdminService>(
      context_, std::move(socket),
      AdminActions{.health = [this] { return describe_poold(sources()); },
                   .snapshot = [this] { return snapshot(); },
                   .quota = [this](const std::string& tenant) { return quota(tenant); },
                   .set_quota = [this](const admin::SetQuotaRequest& request) { return set_quota(request); },
                   .end_session = [this](uint64_t session,
                                         const std::string& reason) { return end_session(session, reason); },
                   .dump = [this](uint64_t session, auto answered) { dump(session, std::move(answered)); },
                   .migrate = [this](const admin::MigrateSessionRequest& request,
                                     auto answered) { migrate(request, answered); },
                   .suspend = [this](const admin::SuspendSessionRequest& request,
                                     auto answered) { suspend(request, answered); },
                   .resume = [this](const admin::ResumeSessionRequest& request,
                                    auto answered) { resume(request, answered); },
                   .upgrade = [this](auto answered) { upgrade(answered); },
                   .may_connect = [this](pid_t pid) { return !pool_.is_worker(pid); }});
}

Result<void> Administration::serve_metrics(const std::string& address) {
  auto server =
      HttpServer::listen(context_, address, [this](const std::string& path) { return answer(path); });
  if (!server) return server.error();
  http_ = std::move(*server);
  log::info("metrics", {{"url", "http://" + text_of(http_->endpoint()) + "/metrics"}});
  if (!http_->endpoint().address().is_loopback()) {
    log::warning("metrics_open", {{"reason",
                                   "the metrics, including tenants' names, are readable by every client that "
                                   "can reach this address"}});
  }
  return {};
}

void Administration::pause() {
  if (service_) kept_socket_ = std::make_unique<OwnedSocket>(service_->release_socket());
  close();
}

void Administration::close() {
  service_.reset();
  http_.reset();
}

HttpResponse Administration::answer(const std::string& path) const {
  if (path == "/metrics") return {200, metrics_text(snapshot()), kMetricsType};
  if (path == "/healthz") return {200, "alive\n"};
  if (path == "/readyz") {
    const std::string why = pool_.state().not_ready_because;
    if (why.empty()) return {200, "ready\n"};
    return {503, "not ready: " + printable(why) + "\n"};
  }
  return {404, "not found; available: /metrics, /healthz, /readyz\n"};
}

Result<admin::Quota> Administration::quota(const std::string& tenant) const {
  const Tenant* const found = tenants_.find(tenant);
  if (!found) return Error{ErrorCode::unavailable, "there is no tenant '" + printable(tenant) + "'"};
  return to_message(found->quota);
}

void Administration::dump(uint64_t session, std::function<void(Result<admin::SessionDump>)> answered) {
  const auto asked =
      pool_.dumps().ask(session, [answered](const SessionView& view, const Result<std::string>& said) {
        answered(complete_dump(view, said));
      });
  if (!asked) answered(asked.error());
}

void Administration::migrate(const admin::MigrateSessionRequest& request,
                             const std::function<void(Result<admin::MigrateSessionReply>)>& answered) {
  const auto told = [this, session = request.session(), to = request.to(),
                     answered](const Result<Migrations::Outcome>& outcome) {
    audit_.migration_ended(session, to, outcome);
    if (!outcome) return answered(outcome.error());
    admin::MigrateSessionReply reply;
    reply.set_migrated(outcome->migrated);
    reply.set_reason(outcome->reason);
    reply.set_milliseconds(static_cast<uint64_t>(outcome->time.count()));
    answered(std::move(reply));
  };
  const auto requested = pool_.request_migration(request.session(), request.to(), told);
  if (!requested) return answered(requested.error());
  audit_.administered("migrate", std::to_string(request.session()), "to " + request.to());
}

void Administration::upgrade(const std::function<void(Result<admin::UpgradeReply>)>& answered) {
  upgrade_([this, answered](const Result<std::string>& version) {
    if (!version) return answered(version.error());
    audit_.administered("upgrade", *version, "while sessions run");
    admin::UpgradeReply reply;
    reply.set_version(*version);
    answered(std::move(reply));
  });
}

void Administration::save(upgrade::State& to) const {
  to.set_upgrades(upgrades_ + 1);
  to.set_started_ms(
      std::chrono::duration_cast<std::chrono::milliseconds>(started_.time_since_epoch()).count());
  ended_.save(to);
  for (const std::string& name : tenants_.changed()) {
    upgrade::ChangedQuota& changed = *to.add_quotas();
    changed.set_tenant(name);
    *changed.mutable_quota() = to_message(tenants_.find(name)->quota);
  }
  if (!kept_socket_) return;
  upgrade::AdminSocket& socket = *to.mutable_admin_socket();
  socket.set_path(kept_socket_->path());
  socket.set_lock(kept_socket_->lock());
  socket.set_socket(kept_socket_->descriptor());
}

void Administration::restore(const upgrade::State& from) {
  upgrades_ = from.upgrades();
  started_ = std::chrono::system_clock::time_point(std::chrono::milliseconds(from.started_ms()));
  ended_.restore(from);
  restore_quotas({from.quotas().begin(), from.quotas().end()});
  if (from.has_admin_socket()) {
    const upgrade::AdminSocket& socket = from.admin_socket();
    kept_socket_ =
        std::make_unique<OwnedSocket>(OwnedSocket::take_over(socket.path(), socket.lock(), socket.socket()));
  }
}

// Again and again, because a partition may fit only when another one has become smaller.
void Administration::restore_quotas(std::vector<upgrade::ChangedQuota> quotas) {
  const auto set = [this](const upgrade::ChangedQuota& changed) {
    return tenants_.set_quota(changed.tenant(), quota_of(changed.quota()));
  };
  while (std::erase_if(quotas, [&](const auto& changed) { return set(changed).ok(); }) != 0) {
  }
  for (const auto& changed : quotas)
    log::warning("quota_not_kept", {{"tenant", changed.tenant()}, {"reason", set(changed).error().message}});
}

void Administration::suspend(const admin::SuspendSessionRequest& request,
                             const std::function<void(Result<admin::SuspendSessionReply>)>& answered) {
  const auto told = [answered](const Result<Suspensions::Outcome>& outcome) {
    if (!outcome) return answered(outcome.error());
    admin::SuspendSessionReply reply;
    reply.set_suspended(outcome->done);
    reply.set_reason(outcome->reason);
    reply.set_path(outcome->path);
    reply.set_bytes(outcome->bytes);
    reply.set_milliseconds(static_cast<uint64_t>(outcome->time.count()));
    answered(std::move(reply));
  };
  const auto asked =
      pool_.request_suspension(request.session(), {request.to_disk(), request.encrypt()}, told);
  if (!asked) return answered(asked.error());
  audit_.administered("suspend", std::to_string(request.session()),
                      std::string(request.to_disk() ? "to disk" : "to host memory") +
                          (request.encrypt() ? ", encrypted" : ""));
}

void Administration::resume(const admin::ResumeSessionRequest& request,
                            const std::function<void(Result<admin::ResumeSessionReply>)>& answered) {
  const auto told = [answered](const Result<Suspensions::Outcome>& outcome) {
    if (!outcome) return answered(outcome.error());
    admin::ResumeSessionReply reply;
    reply.set_resumed(outcome->done);
    reply.set_reason(outcome->reason);
    reply.set_session(outcome->session);
    reply.set_milliseconds(static_cast<uint64_t>(outcome->time.count()));
    answered(std::move(reply));
  };
  Suspensions& suspensions = pool_.suspensions();
  if (!request.file().empty()) {
    audit_.administered("resume", printable(request.file()), "");
    return suspensions.resume_file(request.file(), told);
  }
  if (printable(request.at()) != request.at())
    return answered(Error{ErrorCode::invalid, "the address has characters that are not printable"});
  const auto asked = suspensions.resume(request.session(), request.at(), told);
  if (!asked) return answered(asked.error());
  audit_.administered("resume", std::to_string(request.session()),
                      request.at().empty() ? "" : "at " + request.at());
}

// Finds a GPU by its number or its UUID.
Result<uint32_t> Administration::gpu_of(const std::string& name) const {
  const auto& devices = pool_.devices();
  const std::string uuid = gpu_uuid(name);
  for (uint32_t gpu = 0; gpu < std::min(devices.size(), quota::kMostGpus); ++gpu) {
    if (name == std::to_string(gpu) || (!uuid.empty() && uuid == gpu_uuid_text(devices[gpu].uuid())))
      return gpu;
  }
  return Error{ErrorCode::invalid, "this poold has no GPU '" + printable(name) + "'"};
}

Result<void> Administration::end_session(uint64_t session, const std::string& reason) {
  const std::string why = reason.empty() ? "no reason given" : printable(reason);
  auto ended = pool_.end_session(session, "ended by an administrator: " + why);
  if (ended) audit_.administered("kill", std::to_string(session), why);
  return ended;
}

Result<admin::Quota> Administration::set_quota(const admin::SetQuotaRequest& request) {
  const std::string& tenant = request.tenant();
  const Tenant* const found = tenants_.find(tenant);
  if (!found) return quota(tenant);
  quota::Quota changed = found->quota;
  if (request.gpu().empty()) {
    apply(request.quota(), changed);
  } else {
    const auto gpu = gpu_of(request.gpu());
    if (!gpu) return gpu.error();
    quota::GpuLimits limits = request.as_each() ? quota::GpuLimits{} : changed.gpus[*gpu];
    if (const auto applied = apply(request.quota(), limits); !applied) return applied.error();
    changed.gpus[*gpu] = limits;
    if (limits == quota::GpuLimits{}) changed.gpus.erase(*gpu);
  }
  if (const auto set = tenants_.set_quota(tenant, changed); !set) return set.error();
  audit_.administered("set_quota", tenant, request.gpu().empty() ? "" : "GPU " + request.gpu());
  return quota(tenant);
}

}  // namespace gpupool::server
