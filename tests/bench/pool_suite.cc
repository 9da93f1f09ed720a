#include "tests/bench/pool_suite.h"

#include <absl/synchronization/mutex.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "protocol/control/pool.grpc.pb.h"
#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"

namespace gpupool::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = Target::Kind;
using namespace gpupool::testing;

constexpr int kConnections = 8;  // shared by all lease clients
constexpr std::chrono::milliseconds kHeartbeat{2000};

struct Measured {
  double per_second = 0;
  std::vector<double> milliseconds;  // sorted
  double at(double part) const {
    return milliseconds[static_cast<size_t>(std::ceil(part * static_cast<double>(milliseconds.size()))) - 1];
  }
};

// The lease clients of one measurement: each acquires and releases a lease of one GPU repeatedly. They run on
// gRPC's threads only, so that the wake-up of other threads is not measured.
class Holders {
 public:
  Holders(const std::string& address, int holders, double seconds)
      : holders_(static_cast<size_t>(holders)),
        first_(request_call(1, 1000)),
        warm_(Clock::now() + std::chrono::milliseconds(500)),
        end_(warm_ + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6))) {
    last_.mutable_release();
    for (int i = 0; i < std::min(holders, kConnections); ++i)
      stubs_.push_back(pool::Leases::NewStub(connect(address)));
    for (int i = 0; i < holders; ++i) new Call(*this, *stubs_[static_cast<size_t>(i) % stubs_.size()]);
  }

  // Waits for all clients and returns their results. Throws std::runtime_error if a lease was not granted or
  // released.
  Measured measured(double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_.size() == holders_; });
    ended_.clear();  // destroy a channel's last call here, not on a thread of gRPC
    if (failed_ || took_.empty()) throw std::runtime_error("a lease was not granted or not released");
    std::sort(took_.begin(), took_.end());
    const auto grants = static_cast<double>(took_.size());
    return {grants / seconds, std::move(took_)};
  }

 private:
  // One lease; its end starts the client's next call.
  class Call : public grpc::ClientBidiReactor<pool::AcquireCall, pool::AcquireEvent> {
   public:
    Call(Holders& holders, pool::Leases::Stub& stub) : holders_(holders), stub_(stub), start_(Clock::now()) {
      stub_.async()->Acquire(&context_, this);
      AddHold();
      StartWrite(&holders_.first_);
      StartRead(&event_);
      StartCall();
    }

   private:
    void OnWriteDone(bool) override { release(); }
    void OnReadDone(bool good) override {
      if (!good) return RemoveHold();
      if (event_.has_granted() && !std::exchange(granted_, true)) {
        took_ = std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
        release();
      }
      StartRead(&event_);
    }
    // Releases the lease when the request has been written and the grant received, whichever is later.
    void release() {
      if (++steps_ == 2) StartWriteLast(&holders_.last_, {});
    }
    void OnDone(const grpc::Status& status) override {
      const bool good = status.ok() && granted_;
      if (!holders_.another(good, start_, took_)) return holders_.over(this);
      new Call(holders_, stub_);
      delete this;
    }

    Holders& holders_;
    pool::Leases::Stub& stub_;
    const Clock::time_point start_;
    grpc::ClientContext context_;
    pool::AcquireEvent event_;
    bool granted_ = false;
    double took_ = 0;
    std::atomic<int> steps_ = 0;
  };

  bool another(bool good, Clock::time_point start, double took) {
    const std::lock_guard lock(mutex_);
    if (!good)
      failed_ = true;
    else if (start >= warm_)
      took_.push_back(took);
    return !failed_ && Clock::now() < end_;
  }
  void over(Call* last) {
    const std::lock_guard lock(mutex_);
    ended_.emplace_back(last);
    changed_.notify_all();
  }

  const size_t holders_;
  pool::AcquireCall first_, last_;
  const Clock::time_point warm_, end_;
  std::vector<std::unique_ptr<pool::Leases::Stub>> stubs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<double> took_;
  std::vector<std::unique_ptr<Call>> ended_;  // the last call of each client
  bool failed_ = false;
};

Measured measure(const std::string& address, int holders, double seconds) {
  return Holders(address, holders, seconds).measured(seconds);
}

}  // namespace

std::vector<Figure> measure_pool(const PoolSuite& suite) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as in pool-scheduler
  Samples samples;
  for (int round = 0; round < suite.rounds; ++round) {
    std::fprintf(stderr, "gpupool-bench: round %d of %d\n", round + 1, suite.rounds);
    SchedulerProcess scheduler;
    SimulatedPoolds poolds(scheduler.address(), suite.poolds, suite.gpus, nullptr, kHeartbeat);
    if (!poolds.await()) throw std::runtime_error("not all poolds registered:\n" + scheduler.log());
    const Measured alone = measure(scheduler.address(), 1, suite.seconds);
    samples.add("alone_p50", alone.at(0.5));
    samples.add("alone_p99", alone.at(0.99));
    for (const int holders : suite.holders) {
      const Measured many = measure(scheduler.address(), holders, suite.seconds);
      const std::string suffix = std::to_string(holders);
      samples.add("per_second_" + suffix, many.per_second);
      samples.add("p50_" + suffix, many.at(0.5));
      samples.add("p99_" + suffix, many.at(0.99));
    }
  }
  std::vector<Figure> figures;
  for (const int holders : suite.holders) {
    const std::string count = std::to_string(holders), beside = count + " holders at once";
    const std::string of = holders == suite.holders.front() ? "" : "_" + count + "_holders";
    figures.push_back({"lease_grants" + of,
                       "grpc",
                       samples.median("per_second_" + count),
                       "per second",
                       beside,
                       0,
                       {Kind::value_at_least, 2000}});
    figures.push_back({"lease_grant_p50" + of, "grpc", samples.median("p50_" + count), "ms", beside, 0});
    figures.push_back({"lease_grant_p99" + of,
                       "grpc",
                       samples.median("p99_" + count),
                       "ms",
                       beside,
                       0,
                       {Kind::value_at_most, 10}});
  }
  figures.push_back({"lease_grant_alone_p50", "grpc", samples.median("alone_p50"), "ms", "one holder", 0});
  figures.push_back({"lease_grant_alone_p99",
                     "grpc",
                     samples.median("alone_p99"),
                     "ms",
                     "one holder",
                     0,
                     {Kind::value_at_most, 10}});
  return figures;
}

}  // namespace gpupool::bench
