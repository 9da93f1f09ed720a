// pool-admin's connection to a pool's scheduler: finds the leader among the given addresses, and translates
// gRPC errors into messages for the user. One thread; throws Failure.
#pragma once
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "protocol/control/pool_admin.grpc.pb.h"
#include "protocol/scheduler/address.h"
#include "protocol/transport/transport.h"
#include "scheduler/admin/failure.h"

namespace gpupool::admin {

class PoolClient {
 public:
  struct Settings {
    pool::PoolAddress address;
    std::string token;          // an operator's token; empty: none
    transport::TlsOptions tls;  // certificate files
  };
  explicit PoolClient(Settings settings) : settings_(std::move(settings)) {}

  // Calls the leader with a deadline of 8 s per attempt, following the leader addresses in replies; throws
  // Failure.
  template <class Request, class Reply>
  Reply call(grpc::Status (pool::PoolAdmin::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
             const Request& request) {
    Reply reply;
    attempt([&](pool::PoolAdmin::Stub& stub, grpc::ClientContext& context) {
      return (stub.*method)(&context, request, &reply);
    });
    return reply;
  }
  // Returns a stub for the scheduler that answered last.
  pool::PoolAdmin::Stub& stub();
  bool has_several() const { return settings_.address.schedulers.size() > 1; }
  void attach_token(grpc::ClientContext& context) const;
  // Throws a Failure for a status other than OK.
  void check(const grpc::Status& status) const;

 private:
  void attempt(const std::function<grpc::Status(pool::PoolAdmin::Stub&, grpc::ClientContext&)>& call);

  Settings settings_;
  size_t current_ = 0;  // index in settings_.address.schedulers
  std::unique_ptr<pool::PoolAdmin::Stub> stub_;
};

}  // namespace gpupool::admin
