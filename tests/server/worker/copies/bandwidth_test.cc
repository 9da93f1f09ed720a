#include "server/worker/copies/bandwidth.h"

#include <thread>

#include "server/quota/account.h"
#include "server/quota/shared_page.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using Ready = transport::Connection::Ready;
using std::chrono::milliseconds;

namespace {

// A connection whose wait() ends at its deadline, with an interrupt just after it. Without a deadline there
// is data.
class InterruptedLate final : public transport::Connection {
 public:
  Result<size_t> send_some(std::span<const iovec>) override { return size_t{0}; }
  Result<size_t> receive_some(std::span<std::byte>) override { return size_t{0}; }
  Result<Ready> wait(bool, bool, transport::Deadline deadline) override {
    if (!deadline) return Ready::receive;
    std::this_thread::sleep_until(*deadline);
    outer->interrupt();
    return Ready::none;
  }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "the test"; }
  int release_descriptor() override { return -1; }

  transport::Connection* outer = nullptr;
};

}  // namespace

TEST_CASE("an interrupt that comes when the debt is paid off ends the wait") {
  const auto account = quota::SharedPage<quota::Account>::create("account");
  REQUIRE(account);
  (**account)->to_device_bytes_per_second = 1'000'000;
  Usage usage;
  usage.account = *account;
  const auto bandwidth = std::make_shared<Bandwidth>(usage);
  auto inner = std::make_unique<InterruptedLate>();
  InterruptedLate& carrier = *inner;
  MeteredConnection connection(std::move(inner), bandwidth);
  carrier.outer = &connection;
  bandwidth->charge(Bandwidth::Direction::to_device, 50'000);  // 50 ms, of which the burst pays 20
  REQUIRE(bandwidth->debt(Bandwidth::Direction::to_device) > std::chrono::nanoseconds(0));
  const auto interrupted = connection.wait(true, false, std::nullopt);
  REQUIRE(interrupted);
  CHECK(*interrupted == Ready::none);
  const auto ready = connection.wait(true, false, std::nullopt);
  REQUIRE(ready);
  CHECK(*ready == Ready::receive);
}
