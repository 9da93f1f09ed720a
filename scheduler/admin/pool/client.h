// The scheduler that pool-admin speaks to: the leader among those that are named, and errors of gRPC as what a person can act on.
#pragma once
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "client/holder/address.h"
#include "protocol/control/pool_admin.grpc.pb.h"
#include "protocol/transport/transport.h"
#include "scheduler/admin/failure.h"

namespace gpupool::admin {

class PoolClient {
 public:
  struct Settings {
    holder::PoolAddress address;
    std::string token;          // an operator's
    transport::TlsOptions tls;  // files
  };
  explicit PoolClient(Settings settings) : settings_(std::move(settings)) {}

  // Calls with a deadline, the leader or whoever says who that is; throws Failure.
  template <class Request, class Reply>
  Reply call(grpc::Status (pool::PoolAdmin::Stub::*method)(grpc::ClientContext*, const Request&, Reply*), const Request& request) {
    Reply reply;
    attempt([&](pool::PoolAdmin::Stub& stub, grpc::ClientContext& context) { return (stub.*method)(&context, request, &reply); });
    return reply;
  }
  // A stub for the scheduler that has answered last, and a context for a call without a deadline.
  pool::PoolAdmin::Stub& stub();
  bool has_several() const { return settings_.address.schedulers.size() > 1; }
  void show_token(grpc::ClientContext& context) const;
  // Throws the Failure that a status which is not OK stands for.
  void check(const grpc::Status& status) const;

 private:
  void attempt(const std::function<grpc::Status(pool::PoolAdmin::Stub&, grpc::ClientContext&)>& call);

  Settings settings_;
  size_t current_ = 0;  // of the schedulers
  std::unique_ptr<pool::PoolAdmin::Stub> stub_;
};

}  // namespace gpupool::admin
