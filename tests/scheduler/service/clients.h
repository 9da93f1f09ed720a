// Simulated poolds and lease clients for tests and benchmarks of a real scheduler. They run on gRPC's
// threads; members may be called by any thread. Waiting members give up after kPatience.
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

// Records which shares clients can use, from their grants and from poolds that ended leases, to find double
// grants. Any thread.
class Usage {
 public:
  void granted(const pool::Granted& granted);
  void ended(const std::string& node, const std::string& lease);
  // Returns the UUIDs of GPUs that were ever granted beyond 1000 thousandths at a time.
  std::vector<std::string> double_grants() const;
  // Returns the number of lease parts that have not ended.
  size_t leases() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::vector<lease::Share>> by_lease_;  // (node, lease)
  std::map<std::string, uint32_t> milli_;                                              // by GPU UUID
  std::set<std::pair<std::string, std::string>>
      ended_leases_;  // ended, possibly before the grant was received
  std::set<std::string> double_grants_;
};

// A poold without GPUs: registers with a scheduler, reports, and ends leases as ordered.
class SimulatedPoold {
 public:
  struct Has {
    std::string name;
    uint64_t number = 0;
    int gpus = 8;
    std::string token;
    std::string rack;
    bool reports_use = false;  // each GPU a different part of its time and memory, always the same
  };
  SimulatedPoold(std::shared_ptr<grpc::Channel> channel, Has has, Usage* usage = nullptr);
  ~SimulatedPoold();
  // Sends a heartbeat, or registers if it is not connected. Call regularly.
  void send_heartbeat();
  bool is_registered() const;
  std::string last_error() const;
  std::string fenced() const;
  bool has_ended(const std::string& lease) const;
  // Simulates a restart of the poold's process.
  void restart();
  // Whether leases leave as ordered (default), or have a session that cannot move.
  void allow_moves(bool allow);

 private:
  class NodeConnection;
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
  std::set<std::string> stuck_;  // leases that were ordered to move and cannot
  bool allow_moves_ = true;
  std::unique_ptr<NodeConnection> connection_;
  bool registered_ = false;
  std::string last_error_, fenced_;
};

// Several simulated poolds, with a thread that sends their heartbeats.
class SimulatedPoolds {
 public:
  SimulatedPoolds(const std::string& address, int count, int gpus, Usage* usage = nullptr,
                  std::chrono::milliseconds every = std::chrono::milliseconds(500));
  ~SimulatedPoolds();
  bool await() const;  // waits until all are registered
  SimulatedPoold& operator[](size_t i) { return *poolds_[i]; }

 private:
  std::vector<std::unique_ptr<SimulatedPoold>> poolds_;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::thread heartbeats_;
};

// A lease client: one stream of Leases.Acquire.
class LeaseClient {
 public:
  using OnEvent = std::function<void(const pool::AcquireEvent&)>;  // called on a thread of gRPC
  using OnEnd = std::function<void(const grpc::Status&)>;

  LeaseClient(const std::shared_ptr<grpc::Channel>& channel, const pool::AcquireCall& first,
              const std::string& token = "", OnEvent on_event = {}, OnEnd on_end = {});
  ~LeaseClient();  // cancels the stream if it has not ended
  void release();
  void cut();

  // Wait for an event and return the last one of its type; null on timeout or at the end of the stream.
  std::shared_ptr<const pool::Granted> granted(uint64_t least_serials = 1);
  std::shared_ptr<const pool::Queued> queued(uint32_t place);
  std::shared_ptr<const pool::Ended> ended();
  grpc::Status status();       // waits for the end of the stream
  std::string leader() const;  // from the trailing metadata, after the end

 private:
  struct Call;
  const std::unique_ptr<Call> call_;
};

pool::AcquireCall request_call(uint32_t gpus, uint32_t milli);
pool::AcquireCall resume_call(const pool::Granted& granted);

}  // namespace gpupool::testing
