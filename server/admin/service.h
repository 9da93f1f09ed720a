// The gRPC service of protocol/control/admin.proto over the connections of one Unix socket.
//
// Made and ended on poold's thread. poold accepts the connections itself and gives them to gRPC, so that it decides who may
// connect; gRPC's threads ask poold's (desk.h) and wait. Takes no signals.
#pragma once
#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>

#include "protocol/control/admin.pb.h"
#include "protocol/wire/result.h"
#include "server/admin/desk.h"
#include "server/admin/socket.h"

namespace gpupool::server {

// What the service does, on poold's thread.
struct AdminActions {
  std::function<admin::Poold()> health;
  std::function<admin::Snapshot()> snapshot;
  std::function<Result<admin::Quota>(const std::string& tenant)> quota;
  std::function<Result<admin::Quota>(const admin::SetQuotaRequest& request)> set_quota;
  std::function<Result<void>(uint64_t session, const std::string& reason)> end_session;
  // Answers within 2 s, perhaps at once.
  std::function<void(uint64_t session, std::function<void(Result<admin::SessionDump>)>)> dump;
  std::function<bool(pid_t)> may_connect;
};

class AdminService {
 public:
  AdminService(asio::io_context& context, OwnedSocket socket, AdminActions actions);
  ~AdminService();
  AdminService(const AdminService&) = delete;
  AdminService& operator=(const AdminService&) = delete;

  const std::string& path() const { return socket_.path(); }

 private:
  class Calls;
  class Server;
  void await_connection();
  void accept_some();
  bool welcome(int connection) const;

  OwnedSocket socket_;
  const std::function<bool(pid_t)> may_connect_;
  Desk desk_;
  std::unique_ptr<Calls> calls_;
  std::unique_ptr<Server> server_;
  asio::posix::stream_descriptor readable_;  // the socket's descriptor, lent
  asio::steady_timer pause_;
};

}  // namespace gpupool::server
