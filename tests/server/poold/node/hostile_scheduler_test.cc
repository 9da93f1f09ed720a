// Tests a real poold whose scheduler has been compromised: poold goes on serving, with bounded memory.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>

#include "protocol/control/pool.grpc.pb.h"
#include "protocol/lease/token.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
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
    // AddressSanitizer would keep up to 256 MiB of freed memory.
    poold = std::make_unique<PooldProcess>(FAKE_DEVICE_LIBRARY, options,
                                           Environment{{"ASAN_OPTIONS", "quarantine_size_mb=16"}});
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

// A lease that no node has.
std::string unknown_lease(uint64_t number) {
  std::string lease(lease::kIdBytes, '\0');
  std::memcpy(lease.data(), &number, sizeof number);
  return lease;
}

// Answers a node with orders, as fast as it reads them.
class Flood final : public pool::Nodes::Service {
 public:
  // Fills in the orders with this number, from 1; returns false if there are none any more.
  using Make = std::function<bool(uint64_t number, pool::NodeOrders& orders)>;
  // `reads`: it reads the node's reports.
  explicit Flood(Make make, bool reads = true) : make_(std::move(make)), reads_(reads) {
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
  // The number of leases that the node has reported as over, each once, and what it has said of others.
  size_t ended() const {
    const std::lock_guard lock(mutex_);
    return ended_.size();
  }
  std::string cannot_move() const {
    const std::lock_guard lock(mutex_);
    return cannot_move_;
  }

  grpc::Status Attend(grpc::ServerContext*,
                      grpc::ServerReaderWriter<pool::NodeOrders, pool::NodeReport>* stream) override {
    pool::NodeReport first;
    stream->Read(&first);
    std::thread reader;
    if (reads_) {
      reader = std::thread([&] {
        for (pool::NodeReport report; stream->Read(&report);) take(report);
      });
    }
    for (;;) {
      pool::NodeOrders orders;
      orders.set_heartbeat_ms(1000);
      if (!make_(static_cast<uint64_t>(messages_) + 1, orders) || !stream->Write(orders)) break;
      ++messages_;
    }
    if (reads_) reader.join();
    return grpc::Status::OK;
  }

 private:
  void take(const pool::NodeReport& report) {
    const std::lock_guard lock(mutex_);
    for (const pool::LeaseUse& use : report.leases()) {
      if (use.sessions() == 0) ended_.insert(use.lease());
      if (!use.cannot_move().empty()) cannot_move_ = use.cannot_move();
    }
  }

  const Make make_;
  const bool reads_;
  int port_ = 0;
  std::atomic<int> messages_{0};
  mutable std::mutex mutex_;
  std::set<std::string> ended_;
  std::string cannot_move_;
  std::unique_ptr<grpc::Server> server_;
};

constexpr uint64_t kOrders = 20'000;  // of a message; less than 1 MiB

bool end_unknown_leases(uint64_t number, pool::NodeOrders& orders) {
  for (uint64_t count = 0; count < kOrders; ++count)
    *orders.add_end()->mutable_lease() = unknown_lease(number * kOrders + count);
  return true;
}

// Also to addresses that are none.
bool move_unknown_leases(uint64_t number, pool::NodeOrders& orders) {
  const char* const addresses[] = {"", "tcp://gpu-2:9700", "\x1b[2J", "nowhere"};
  for (uint64_t count = 0; count < kOrders; ++count) {
    pool::MoveLease& move = *orders.add_move();
    move.set_lease(unknown_lease(number * kOrders + count));
    move.set_address(addresses[count % std::size(addresses)]);
  }
  return true;
}

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
  Flood scheduler(GENERATE(false, true) ? move_unknown_leases : end_unknown_leases, false);
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

TEST_CASE("poold handles a bounded number of orders of a message") {
  const bool moves = GENERATE(false, true);
  Flood scheduler([&](uint64_t number, pool::NodeOrders& orders) {
    return number == 1 && (moves ? move_unknown_leases : end_unknown_leases)(number, orders);
  });
  const Attacked node(scheduler.address());
  const size_t most = moves ? 64 : 1024;
  CHECK(eventually([&] { return scheduler.ended() == most; }));
  std::this_thread::sleep_for(milliseconds(500));
  CHECK(scheduler.ended() == most);
}

TEST_CASE("poold handles a bounded number of messages of a scheduler a second") {
  Flood scheduler([](uint64_t number, pool::NodeOrders& orders) {
    *orders.add_end()->mutable_lease() = unknown_lease(number);
    return true;
  });
  const Attacked node(scheduler.address());
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(eventually([&] { return scheduler.ended() > 100; }));
  std::this_thread::sleep_for(milliseconds(1000));
  const size_t ended = scheduler.ended();
  const auto took = std::chrono::steady_clock::now() - begin;
  INFO(ended << " messages, " << scheduler.messages() << " sent");
  // One each 10 ms, and those of the time before `begin`.
  CHECK(static_cast<int64_t>(ended) < std::chrono::ceil<milliseconds>(took).count() / 10 + 200);
}

TEST_CASE("orders to move a running session to addresses that are none leave it alone") {
  constexpr int kTimes = 200;
  std::mutex mutex;
  std::string running;  // lease; empty: none yet
  Flood scheduler([&](uint64_t number, pool::NodeOrders& orders) {
    const auto is_running = [&] {
      const std::lock_guard lock(mutex);
      return !running.empty();
    };
    if (!eventually(is_running)) return false;
    const std::string addresses[] = {"", std::string(5000, 'a'), "tcp://\n", "nowhere", "shm://@x"};
    for (const std::string& address : addresses) {
      pool::MoveLease& move = *orders.add_move();
      move.set_lease(running);
      move.set_address(address);
    }
    return number <= kTimes;
  });
  Attacked node(scheduler.address());
  RawClient client(node.poold->endpoint());
  const lease::Lease lease = node.maker.lease({"GPU-61616161-6161-6161-6161-616161616161"});
  hello::Hello hello = test_hello();
  hello.token = node.maker.token(lease);
  client.open(hello);
  {
    const std::lock_guard lock(mutex);
    running = lease.id();
  }
  CHECK(eventually([&] { return !scheduler.cannot_move().empty(); }));
  CHECK(eventually([&] { return scheduler.messages() == kTimes; }));
  client.ping();
  CHECK(scheduler.ended() == 0);
  CHECK(node.growth() < 100 * kMib);
}

TEST_CASE("poold sends no plaintext to a scheduler whose name only begins like loopback") {
  RawGrpc::Listener scheduler;
  const Authority roots("roots");
  const LeaseMaker maker;
  std::vector<std::string> options = maker.options();
  // As 127.evil.example, but one that getaddrinfo() resolves to 127.0.0.1.
  options.insert(options.end(), {"--pool-scheduler", "127.1:" + std::to_string(scheduler.port())});
  PooldProcess poold(
      FAKE_DEVICE_LIBRARY, options,
      {{"GRPC_DNS_RESOLVER", "native"}, {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", roots.certificate()}});
  CHECK(scheduler.accept_first_byte() == RawGrpc::Listener::kTls);
}
