// Tests a real poold whose scheduler has been compromised: poold goes on serving, with bounded memory.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "protocol/control/pool.grpc.pb.h"
#include "protocol/lease/token.h"
#include "tests/support/catch.h"
#include "tests/support/lease_maker.h"
#include "tests/support/peak_memory.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/raw_grpc.h"

using namespace gpupool;
using namespace gpupool::testing;
using std::chrono::milliseconds;

namespace {

constexpr uint64_t kMib = 1 << 20;

struct Attacked {
  LeaseMaker maker;
  std::unique_ptr<PooldProcess> poold;
  uint64_t before = 0;  // memory in bytes
  explicit Attacked(const std::string& scheduler) {
    std::vector<std::string> options = maker.options();
    options.insert(options.end(), {"--pool-scheduler", scheduler, "--log-level", "warning"});
    poold = std::make_unique<PooldProcess>(FAKE_DEVICE_LIBRARY, options);
    before = peak_memory(poold->pid());
  }
  uint64_t growth() const { return peak_memory(poold->pid()) - before; }
  // Returns how long poold takes to answer a client, of another version.
  milliseconds answer_time() const {
    const auto begin = std::chrono::steady_clock::now();
    RawClient client(poold->endpoint());
    client.send_preamble({.protocol_version = 9999, .length = 0});
    CHECK(client.receive_reply().status == hello::Status::wrong_version);
    return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
  }
};

// Answers a node with orders to end leases that no node has, as fast as it reads them.
class Flood final : public pool::Nodes::Service {
 public:
  Flood() {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_);
  }
  ~Flood() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int messages() const { return messages_; }

  grpc::Status Attend(grpc::ServerContext*,
                      grpc::ServerReaderWriter<pool::NodeOrders, pool::NodeReport>* stream) override {
    constexpr int kOrders = 40'000;  // less than 1 MiB
    pool::NodeReport report;
    stream->Read(&report);
    uint64_t number = 0;
    do {
      pool::NodeOrders orders;
      orders.set_heartbeat_ms(1000);
      for (int count = 0; count < kOrders; ++count) {
        std::string& lease = *orders.add_end()->mutable_lease();
        lease.assign(lease::kIdBytes, '\0');
        std::memcpy(lease.data(), &++number, sizeof number);
      }
      if (!stream->Write(orders)) break;
    } while (++messages_ != 0);
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::atomic<int> messages_{0};
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

TEST_CASE("a message without end from a scheduler does not fill poold's memory") {
  RawGrpc::Listener listener;
  const Attacked node("127.0.0.1:" + std::to_string(listener.port()));
  RawGrpc scheduler = listener.accept();
  REQUIRE(scheduler.answer_next_call(UINT32_MAX));
  const uint64_t accepted = scheduler.send(1024 * kMib);
  INFO(accepted << " " << node.growth());
  CHECK(scheduler.refused());
  CHECK(accepted < 100 * kMib);
  CHECK(node.growth() < 100 * kMib);
  CHECK(node.answer_time() < milliseconds(2000));
}

TEST_CASE("orders without end from a scheduler neither fill poold's memory nor occupy its thread") {
  Flood scheduler;
  const Attacked node(scheduler.address());
  REQUIRE(eventually([&] { return scheduler.messages() > 0; }));
  milliseconds longest{0};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (std::chrono::steady_clock::now() < end) {
    longest = std::max(longest, node.answer_time());
    std::this_thread::sleep_for(milliseconds(10));
  }
  INFO(scheduler.messages() << " messages, " << longest.count() << " ms, " << node.growth());
  CHECK(scheduler.messages() > 5);
  CHECK(node.growth() < 300 * kMib);
  CHECK(longest < milliseconds(1000));
}
