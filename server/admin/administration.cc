#include "server/admin/administration.h"

#include "server/admin/metrics.h"
#include "server/log/log.h"

namespace gpupool::server {

Administration::Administration(asio::io_context& context, WorkerPool& pool, const FrontDoor& door, Tenants& tenants,
                               const Agent* agent)
    : context_(context), pool_(pool), door_(door), tenants_(tenants), agent_(agent) {
  pool.on_session_end([this](const SessionView& session, const std::string&, bool) { ended_.add(session); });
  tenants.on_removal([this](const std::string& lease) { ended_.fold(lease, lease.substr(0, lease.rfind('/'))); });
}

Result<void> Administration::serve_socket(const std::string& path) {
  auto socket = OwnedSocket::listen(path);
  if (!socket) return socket.error();
  service_ = std::make_unique<AdminService>(
      context_, std::move(*socket),
      AdminActions{.health = [this] { return describe_poold(sources()); },
                   .snapshot = [this] { return snapshot(); },
                   .quota = [this](const std::string& tenant) { return quota(tenant); },
                   .set_quota = [this](const std::string& tenant,
                                       const admin::Quota& changes) { return set_quota(tenant, changes); },
                   .end_session = [this](uint64_t session,
                                         const std::string& reason) { return pool_.end_session(session, "ended by an administrator: " + (reason.empty() ? "no reason given" : printable(reason))); },
                   .may_connect = [this](pid_t pid) { return !pool_.is_worker(pid); }});
  log::info("admin_socket", {{"path", path}});
  return {};
}

Result<void> Administration::serve_metrics(const std::string& address) {
  auto server = HttpServer::listen(context_, address, [this](const std::string& path) { return answer(path); });
  if (!server) return server.error();
  http_ = std::move(*server);
  log::info("metrics", {{"url", "http://" + text_of(http_->endpoint()) + "/metrics"}});
  if (!http_->endpoint().address().is_loopback()) {
    log::warning("metrics_open", {{"reason", "whoever reaches this address can read the metrics, tenants' names among them"}});
  }
  return {};
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
  return {404, "there are /metrics, /healthz and /readyz\n"};
}

Result<admin::Quota> Administration::quota(const std::string& tenant) const {
  const Tenant* const found = tenants_.find(tenant);
  if (!found) return Error{ErrorCode::unavailable, "there is no tenant '" + printable(tenant) + "'"};
  return to_message(found->quota);
}

Result<admin::Quota> Administration::set_quota(const std::string& tenant, const admin::Quota& changes) {
  const Tenant* const found = tenants_.find(tenant);
  if (!found) return quota(tenant);
  quota::Quota changed = found->quota;
  apply(changes, changed);
  if (const auto set = tenants_.set_quota(tenant, changed); !set) return set.error();
  return quota(tenant);
}

}  // namespace gpupool::server
