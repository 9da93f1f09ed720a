// The poold that pool-admin speaks to: finds its admin socket, and makes errors of gRPC into what a person can act on.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "protocol/control/admin.grpc.pb.h"

namespace gpupool::admin {

// The exit status of pool-admin.
enum Exit : int {
  kExitGood = 0,
  kExitRefused = 1,      // poold says no: no such tenant or session, a quota that makes no sense; health: it is not ready
  kExitUsage = 2,
  kExitUnreachable = 3,  // no poold there, or it does not answer
};

struct Failure : std::runtime_error {
  Failure(Exit status, const std::string& what) : std::runtime_error(what), status(status) {}
  const Exit status;
};

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
