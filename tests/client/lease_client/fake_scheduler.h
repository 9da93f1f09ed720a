// A scheduler controlled by a test: the gRPC service Leases of pool.proto on a loopback port. Thread-safe.
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
  // Handles a stream, given its first call; the stream ends when it returns.
  using Serve = std::function<grpc::Status(const pool::AcquireCall& first, Stream& stream,
                                           grpc::ServerContext& context)>;

  // Port 0: any free port.
  explicit FakeScheduler(Serve serve, int port = 0);
  ~FakeScheduler();

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }
  // All first calls and releases in the order of their arrival.
  std::vector<pool::AcquireCall> calls() const;
  bool await_calls(size_t count) const;

  // For `serve`: reads until the client releases the lease (true) or disconnects (false).
  bool await_release(Stream& stream);
  static pool::AcquireEvent queued(uint32_t place, uint32_t waiting, const std::string& why);
  static pool::AcquireEvent granted(
      const std::vector<std::pair<std::string, std::string>>& servers);  // pairs of address and token

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
