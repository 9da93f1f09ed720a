// A scheduler for tests of poold's pool agent: a gRPC server with the service Nodes, which sends what a test
// sets and records the nodes' reports. Thread-safe.
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

class FakeScheduler {
 public:
  struct Settings {
    std::string address = "127.0.0.1:0";
    std::string leader;    // if not empty: calls fail with UNAVAILABLE and name this leader
    int64_t clock_ms = 0;  // added to the reported clock
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  };
  FakeScheduler() : FakeScheduler(Settings()) {}
  explicit FakeScheduler(Settings settings);
  ~FakeScheduler();

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Adds an order to end the lease to the answer of each report, until a report has the lease with no
  // session.
  void end(const std::string& lease, const std::string& reason, uint32_t grace_ms = 0);
  void fence(const std::string& why);
  // Waits until the latest report satisfies `enough`; false after a timeout.
  bool await(const std::function<bool(const pool::NodeReport&)>& enough);
  bool await_report() {
    return await([](const pool::NodeReport&) { return true; });
  }
  // Waits until the latest report has the lease with this number of sessions; -1: does not have the lease.
  bool await_sessions(const std::string& lease, int sessions);
  // Waits until a report has said that the lease ended.
  bool await_end(const std::string& lease);
  pool::Inventory inventory() const;
  std::string authorization() const;
  int streams() const;

 private:
  class Service;
  const std::unique_ptr<Service> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace gpupool::testing
