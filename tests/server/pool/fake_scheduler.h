// A scheduler as a node sees it: a real gRPC server whose Nodes service says what a test wants, and keeps
// what it hears.
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
    std::string leader;    // not empty: UNAVAILABLE, and who is
    int64_t clock_ms = 0;  // added to the clock that it tells
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  };
  FakeScheduler() : FakeScheduler(Settings()) {}
  explicit FakeScheduler(Settings settings);
  ~FakeScheduler();

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Said with the answer to each report from now on; an order to end until that lease is reported with no
  // session.
  void end(const std::string& lease, const std::string& reason, uint32_t grace_ms = 0);
  void fence(const std::string& why);
  // Waits until `enough` holds of the latest report; false: it never did.
  bool await(const std::function<bool(const pool::NodeReport&)>& enough);
  bool await_report() {
    return await([](const pool::NodeReport&) { return true; });
  }
  // Sessions of a lease in the latest report; -1: it is not there.
  bool await_sessions(const std::string& lease, int sessions);
  // The lease was reported once as having ended.
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
