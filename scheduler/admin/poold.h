// The poold that pool-admin speaks to: finds its admin socket, and makes errors of gRPC into what a person can act on.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "protocol/control/admin.grpc.pb.h"
#include "scheduler/admin/failure.h"

namespace gpupool::admin {

// `wish`: "unix:PATH", a port, or nothing for the only one of this host. Throws Failure.
std::string find_socket(const std::string& wish);

class PooldClient {
 public:
  explicit PooldClient(const std::string& socket);
  const std::string& socket() const { return socket_; }

  // Calls with a deadline; throws Failure.
  template <class Request, class Reply>
  Reply call(grpc::Status (Admin::Stub::*method)(grpc::ClientContext*, const Request&, Reply*), const Request& request) {
    grpc::ClientContext context;
    set_deadline(context);
    Reply reply;
    check((stub_.get()->*method)(&context, request, &reply));
    return reply;
  }
  Admin::Stub& stub() { return *stub_; }
  // Throws the Failure that a status which is not OK stands for.
  void check(const grpc::Status& status) const;

 private:
  static void set_deadline(grpc::ClientContext& context);
  const std::string socket_;
  const std::unique_ptr<Admin::Stub> stub_;
};

}  // namespace gpupool::admin
