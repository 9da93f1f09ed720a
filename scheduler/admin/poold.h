// pool-admin's connection to a poold on this host: finds its admin socket, and translates gRPC errors into
// messages for the user. One thread; throws Failure.
#pragma once
#include <grpcpp/grpcpp.h>

#include <chrono>
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

  template <class Request, class Reply>
  using Method = grpc::Status (Admin::Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  // Calls with a deadline of 8 s; throws Failure.
  template <class Request, class Reply>
  Reply call(Method<Request, Reply> method, const Request& request) {
    Reply reply;
    check(call_within(kTimeout, method, request, reply));
    return reply;
  }
  // The same with another deadline, and the status as the result.
  template <class Request, class Reply>
  grpc::Status call_within(std::chrono::milliseconds timeout, Method<Request, Reply> method,
                           const Request& request, Reply& reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    return (stub_.get()->*method)(&context, request, &reply);
  }
  Admin::Stub& stub() { return *stub_; }
  // Throws a Failure for a status other than OK.
  void check(const grpc::Status& status) const;

 private:
  static constexpr std::chrono::seconds kTimeout{8};  // longer than poold's own timeout of 5 s
  const std::string socket_;
  const std::unique_ptr<Admin::Stub> stub_;
};

}  // namespace gpupool::admin
