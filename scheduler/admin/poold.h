// pool-admin's connection to a poold on this host: finds its admin socket, and translates gRPC errors into
// messages for the user. One thread; throws Failure.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "protocol/control/admin.grpc.pb.h"
#include "scheduler/admin/failure.h"

namespace gpupool::admin {

// Returns the path of the admin socket. `address`: "unix:PATH", a port, or "" for the only poold on this
// host. Throws Failure.
std::string find_socket(const std::string& address);

class PooldClient {
 public:
  explicit PooldClient(const std::string& socket);
  const std::string& socket() const { return socket_; }

  // Calls with a deadline of 8 s; throws Failure.
  template <class Request, class Reply>
  Reply call(grpc::Status (Admin::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
             const Request& request) {
    grpc::ClientContext context;
    set_deadline(context);
    Reply reply;
    check((stub_.get()->*method)(&context, request, &reply));
    return reply;
  }
  Admin::Stub& stub() { return *stub_; }
  // Throws a Failure for a status other than OK.
  void check(const grpc::Status& status) const;

 private:
  static void set_deadline(grpc::ClientContext& context);
  const std::string socket_;
  const std::unique_ptr<Admin::Stub> stub_;
};

}  // namespace gpupool::admin
