// poold's administration: the gRPC service on the admin socket, and the HTTP endpoint for Prometheus and
// health checks. The daemon owns it, on poold's thread.
#pragma once
#include <asio/io_context.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/http/http_server.h"
#include "server/poold/admin/service.h"
#include "server/poold/admin/snapshot.h"
#include "server/poold/admin/usage.h"
#include "server/poold/upgrade/upgrade.h"

namespace gpupool::server {

class Administration {
 public:
  // `agent` is null if poold belongs to no pool. `nvml`: nvml_library().
  Administration(asio::io_context& context, WorkerPool& pool, const Acceptor& acceptor, Tenants& tenants,
                 Audit& audit, const Agent* agent, const std::string& nvml);
  Administration(const Administration&) = delete;
  Administration& operator=(const Administration&) = delete;

  Result<void> serve_socket(const std::string& path);
  Result<void> serve_metrics(const std::string& address);
  // Stops serving. Open calls end with an error. Returns soon.
  void close();
  // The same, but keeps the socket for this process's next program, or for serve_kept_socket().
  void pause();
  // Serves the socket that pause() or restore() has kept. Returns false if no socket of this path was kept.
  bool serve_kept_socket(const std::string& path);
  admin::Snapshot snapshot() const { return take_snapshot(sources()); }
  const EndedSessionsUsage& ended() const { return ended_; }
  const Sensors& sensors() const { return sensors_; }
  // How to upgrade poold. Call it before serve_socket().
  void on_upgrade(std::function<void(Upgrade::Begun)> begin) { upgrade_ = std::move(begin); }
  // For this process's next program (server/poold/upgrade).
  void save(upgrade::State& to) const;
  void restore(const upgrade::State& from);
  // Counts a refused session of an authenticated tenant.
  void denied(const std::string& tenant) { ended_.denied(tenant); }

 private:
  SnapshotSources sources() const {
    return {pool_, acceptor_, tenants_, ended_, audit_, started_, upgrades_, agent_, sensors_};
  }
  void serve(OwnedSocket socket);
  HttpResponse answer(const std::string& path) const;
  Result<admin::Quota> quota(const std::string& tenant) const;
  Result<admin::Quota> set_quota(const admin::SetQuotaRequest& request);
  Result<void> end_session(uint64_t session, const std::string& reason);
  void dump(uint64_t session, std::function<void(Result<admin::SessionDump>)> answered);
  void migrate(const admin::MigrateSessionRequest& request,
               const std::function<void(Result<admin::MigrateSessionReply>)>& answered);
  void upgrade(const std::function<void(Result<admin::UpgradeReply>)>& answered);
  void restore_quotas(std::vector<upgrade::ChangedQuota> quotas);
  void suspend(const admin::SuspendSessionRequest& request,
               const std::function<void(Result<admin::SuspendSessionReply>)>& answered);
  void resume(const admin::ResumeSessionRequest& request,
              const std::function<void(Result<admin::ResumeSessionReply>)>& answered);
  Result<uint32_t> gpu_of(const std::string& name) const;

  asio::io_context& context_;
  WorkerPool& pool_;
  const Acceptor& acceptor_;
  Tenants& tenants_;
  Audit& audit_;
  const Agent* const agent_;
  std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();  // of the process
  uint32_t upgrades_ = 0;
  std::function<void(Upgrade::Begun)> upgrade_;
  EndedSessionsUsage ended_;
  Sensors sensors_;
  std::unique_ptr<AdminService> service_;
  std::unique_ptr<OwnedSocket> kept_socket_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace gpupool::server
