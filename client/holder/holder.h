// Gets a lease from a pool's scheduler and holds it: the stream of pool.proto's Leases.Acquire, taken up again with the ticket or the
// secret when it was cut, at this scheduler or another one of the pool. Its request has an id, so that a grant which it could not hear
// is told again.
//
// run() is one thread's, stop() any other's. What happens is told by calls from within run().
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

#include "client/holder/address.h"
#include "protocol/control/pool.grpc.pb.h"
#include "protocol/transport/transport.h"

namespace gpupool::holder {

class Holder {
 public:
  struct Settings {
    PoolAddress address;
    std::string token;          // of the tenant
    transport::TlsOptions tls;  // files; without `ca` the system's authorities are trusted
    // How long no scheduler at all may be reachable before the first one was.
    std::chrono::milliseconds patience{10'000};
    // The token as it is now, for each new stream: tokens are replaced while leases are held. Empty, or it says nothing: `token`.
    std::function<std::string()> renewed_token{};
  };
  // A lease, or the same one with new tokens. An error ends run().
  using Granted = std::function<Result<void>(const pool::Granted&)>;
  using Told = std::function<void(const std::string&)>;  // one line for a person

  Holder(Settings settings, Granted granted, Told told);

  // Until the lease has ended, was never granted, or stop(). The error says why, but for stop().
  Result<void> run();
  // Gives the place in the queue or the lease back; run() returns when the scheduler has taken it. May block while a connection
  // is made.
  void stop();

 private:
  using Stream = grpc::ClientReaderWriter<pool::AcquireCall, pool::AcquireEvent>;
  using Clock = std::chrono::steady_clock;

  grpc::Status attend(const Scheduler& scheduler, std::optional<Error>& over);
  std::optional<Error> take(const pool::AcquireEvent& event);
  void tell_place(const pool::Queued& queued);
  void pause(std::chrono::milliseconds time);

  Settings settings_;
  const Granted granted_;
  const Told told_;
  size_t next_ = 0;     // of the schedulers
  bool redirected_ = false;  // the scheduler of this attempt has named another one as the leader
  bool heard_ = false;  // the scheduler has answered in this attempt
  bool ever_heard_ = false;
  pool::Resume lease_;      // empty: none yet
  std::string last_told_;
  Clock::time_point told_at_{};

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  Stream* stream_ = nullptr;  // of the attempt under way
};

}  // namespace gpupool::holder
