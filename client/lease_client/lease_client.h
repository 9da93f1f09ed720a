// Acquires a lease from a pool's scheduler and holds it: the stream of Leases.Acquire in pool.proto. A broken
// stream is resumed, at this scheduler or another one of the pool, by the queue ticket or the lease's secret.
// The request has an id, so that a grant whose message was lost is sent again. A request with `follow`
// instead gets what the holder of the lease with its id gets, and one with `check_only` only an answer.
//
// Used by pool-lease. run() blocks one thread; stop() may be called from any other. The callbacks run in
// run()'s thread.
#pragma once
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "protocol/control/pool.grpc.pb.h"
#include "protocol/scheduler/address.h"
#include "protocol/transport/transport.h"

namespace gpupool::lease_client {

class LeaseClient {
 public:
  struct Settings {
    pool::PoolAddress address;
    std::string token;          // token of the tenant
    transport::TlsOptions tls;  // files; without `ca` the system's authorities are trusted
    // How long to try before the first scheduler has answered.
    std::chrono::milliseconds patience{10'000};
    // Returns the current token for each new stream, because tokens are replaced while leases are held. If
    // empty or null, `token` is used.
    std::function<std::string()> renewed_token{};
  };
  // Called for a new lease, and for the same lease with renewed tokens. An error ends run().
  using Granted = std::function<Result<void>(const pool::Granted&)>;
  using Notify = std::function<void(const std::string&)>;  // one line for the user

  LeaseClient(Settings settings, Granted granted, Notify notify);

  // Blocks until the lease has ended or was refused, or stop() was called, or a request with `check_only` was
  // answered. The error gives the reason; no error after stop(), or if the checked request can be granted.
  Result<void> run();
  // Leaves the queue or returns the lease; run() returns when the scheduler has acknowledged it. May block
  // while a connection is opened.
  void stop();

 private:
  using Stream = grpc::ClientReaderWriter<pool::AcquireCall, pool::AcquireEvent>;
  using Clock = std::chrono::steady_clock;

  grpc::Status run_stream(const pool::Scheduler& scheduler, std::optional<Error>& over);
  std::optional<Error> take(const pool::AcquireEvent& event);
  bool follows() const { return settings_.address.request.follow(); }
  void report_position(const pool::Queued& queued);
  void pause(std::chrono::milliseconds time);

  Settings settings_;
  const Granted granted_;
  const Notify notify_;
  size_t next_ = 0;          // index of the next scheduler
  bool redirected_ = false;  // the scheduler of this attempt named another one as leader
  bool got_reply_ = false;   // the scheduler of this attempt has answered
  bool ever_got_reply_ = false;
  pool::Resume lease_;  // empty: no lease yet
  std::string last_message_;
  Clock::time_point last_message_at_{};

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  Stream* stream_ = nullptr;  // stream of the current attempt
};

}  // namespace gpupool::lease_client
