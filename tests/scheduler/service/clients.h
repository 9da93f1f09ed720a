// Who talks to a scheduler, for tests and measurements: poolds that only pretend to have GPUs, and holders of leases.
#pragma once
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "protocol/control/pool.grpc.pb.h"

namespace gpupool::testing {

std::shared_ptr<grpc::Channel> connect(const std::string& address);
std::string some_uuid(uint64_t node, uint64_t gpu);

// What the holders of a pool can use of every GPU: told by grants, and by poolds whose leases have ended. Any thread.
class Usage {
 public:
  void granted(const pool::Granted& granted);
  void ended(const std::string& node, const std::string& lease);
  // A GPU that was ever given away more than once at a time, by its UUID.
  std::vector<std::string> twice() const;
  // Those that nobody has ended anywhere.
  size_t leases() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::vector<lease::Share>> by_lease_;  // node and lease
  std::map<std::string, uint32_t> milli_;
  std::set<std::pair<std::string, std::string>> over_;  // they may be ended before their grant is heard
  std::set<std::string> twice_;
};

// Attends again whenever it is cut off. Threads of its own.
class PretendedPoold {
 public:
  struct Has {
    std::string name;
    uint64_t number = 0;
    int gpus = 8;
    std::string token;
  };
  PretendedPoold(std::shared_ptr<grpc::Channel> channel, Has has, Usage* usage = nullptr);
  ~PretendedPoold();
  // A report, and a new attendance where there is none. To be called every now and then.
  void beat();
  bool attends() const;
  std::string last_error() const;
  std::string fenced() const;
  bool has_ended(const std::string& lease) const;
  // Another process in its place.
  void restart();

 private:
  class Attendance;
  pool::NodeReport report(bool first) const;
  void cut();

  const std::shared_ptr<grpc::Channel> channel_;
  const Has has_;
  Usage* const usage_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t boot_ = 0;
  std::set<std::string> ended_;  // since the last report
  std::set<std::string> all_ended_;
  std::unique_ptr<Attendance> attendance_;
  bool attends_ = false;
  std::string last_error_, fenced_;
};

// Many of them, with a thread that lets them beat.
class PretendedPoolds {
 public:
  PretendedPoolds(const std::string& address, int count, int gpus, Usage* usage = nullptr, std::chrono::milliseconds every = std::chrono::milliseconds(500));
  ~PretendedPoolds();
  bool await() const;  // until all attend
  PretendedPoold& operator[](size_t i) { return *poolds_[i]; }

 private:
  std::vector<std::unique_ptr<PretendedPoold>> poolds_;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::thread beating_;
};

// One stream of Leases.Acquire.
class Acquisition {
 public:
  using Heard = std::function<void(const pool::AcquireEvent&)>;  // by a thread of gRPC
  using Over = std::function<void(const grpc::Status&)>;

  Acquisition(const std::shared_ptr<grpc::Channel>& channel, const pool::AcquireCall& first, const std::string& token = "", Heard heard = {}, Over over = {});
  ~Acquisition();  // cut off, where it is not over
  void release();
  void cut();

  // What came last of a kind; waits for one. Null: it did not come.
  std::shared_ptr<const pool::Granted> granted(uint64_t least_serials = 1);
  std::shared_ptr<const pool::Queued> queued(uint32_t place);
  std::shared_ptr<const pool::Ended> ended();
  grpc::Status status();  // waits for the end
  std::string leader() const;  // that the trailing metadata name, after the end

 private:
  struct Call;
  const std::unique_ptr<Call> call_;
};

pool::AcquireCall request_call(uint32_t gpus, uint32_t milli);
pool::AcquireCall resume_call(const pool::Granted& granted);

}  // namespace gpupool::testing
