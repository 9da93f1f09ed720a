// A scheduler that does what a test tells it: pool.proto's Leases on a port of loopback.
#pragma once
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/control/pool.grpc.pb.h"

namespace gpupool::testing {

class FakeScheduler : private pool::Leases::Service {
 public:
  using Stream = grpc::ServerReaderWriter<pool::AcquireEvent, pool::AcquireCall>;
  // What to do with a stream whose first call this is; it ends when this returns.
  using Serve = std::function<grpc::Status(const pool::AcquireCall& first, Stream& stream,
                                           grpc::ServerContext& context)>;

  // Port 0: any.
  explicit FakeScheduler(Serve serve, int port = 0);
  ~FakeScheduler();

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }
  // All first calls, and the releases, in the order in which they came.
  std::vector<pool::AcquireCall> calls() const;
  bool await_calls(size_t count) const;

  // For `serve`: reads until the holder gives back (true) or is gone.
  bool await_release(Stream& stream);
  static pool::AcquireEvent queued(uint32_t place, uint32_t waiting, const std::string& why);
  static pool::AcquireEvent granted(
      const std::vector<std::pair<std::string, std::string>>& servers);  // addresses and tokens

 private:
  grpc::Status Acquire(grpc::ServerContext* context, Stream* stream) override;
  void note(const pool::AcquireCall& call);

  const Serve serve_;
  int port_;
  std::unique_ptr<grpc::Server> server_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<pool::AcquireCall> calls_;
};

}  // namespace gpupool::testing
