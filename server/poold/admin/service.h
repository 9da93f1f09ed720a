// The gRPC service of protocol/control/admin.proto on a Unix socket. Administration owns it.
//
// Made and destroyed on poold's thread, which accepts connections, decides which processes may connect, and
// passes the connections to gRPC. gRPC's threads run their questions on poold's thread
// (main_thread_caller.h) and wait for the answers. They have all signals blocked.
#pragma once
#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>

#include "common/result.h"
#include "protocol/control/admin.pb.h"
#include "server/poold/admin/main_thread_caller.h"
#include "server/poold/admin/socket.h"

namespace gpupool::server {

// Operations of the service, called on poold's thread.
struct AdminActions {
  std::function<admin::Poold()> health;
  std::function<admin::Snapshot()> snapshot;
  std::function<Result<admin::Quota>(const std::string& tenant)> quota;
  std::function<Result<admin::Quota>(const admin::SetQuotaRequest& request)> set_quota;
  std::function<Result<void>(uint64_t session, const std::string& reason)> end_session;
  // Answers within 2 s, possibly before returning.
  std::function<void(uint64_t session, std::function<void(Result<admin::SessionDump>)>)> dump;
  // May answer after minutes, or never.
  std::function<void(const admin::MigrateSessionRequest& request,
                     std::function<void(Result<admin::MigrateSessionReply>)>)>
      migrate;
  // Likewise.
  std::function<void(const admin::SuspendSessionRequest& request,
                     std::function<void(Result<admin::SuspendSessionReply>)>)>
      suspend;
  std::function<void(const admin::ResumeSessionRequest& request,
                     std::function<void(Result<admin::ResumeSessionReply>)>)>
      resume;
  // Answers within a minute.
  std::function<void(std::function<void(Result<admin::UpgradeReply>)>)> upgrade;
  std::function<bool(pid_t)> may_connect;
};

class AdminService {
 public:
  AdminService(asio::io_context& context, OwnedSocket socket, AdminActions actions);
  ~AdminService();
  AdminService(const AdminService&) = delete;
  AdminService& operator=(const AdminService&) = delete;

  const std::string& path() const { return socket_.path(); }
  // Ends the open calls, and gives the socket away; callers wait in its queue. Destroy the object then.
  OwnedSocket release_socket();

 private:
  class Calls;
  class Server;
  void await_connection();
  void accept_some();
  bool is_allowed(int connection) const;

  OwnedSocket socket_;
  const std::function<bool(pid_t)> may_connect_;
  MainThreadCaller main_thread_;
  std::unique_ptr<Calls> calls_;
  std::unique_ptr<Server> server_;
  asio::posix::stream_descriptor readable_;  // borrows the socket's descriptor
  asio::steady_timer pause_;
};

}  // namespace gpupool::server
