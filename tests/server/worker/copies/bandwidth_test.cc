#include "server/worker/copies/bandwidth.h"

#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>
#include <vector>

#include "protocol/transport/resume/resumable_connection.h"
#include "server/quota/account.h"
#include "server/quota/shared_page.h"
#include "tests/support/asleep.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using Ready = transport::Connection::Ready;
using Direction = Bandwidth::Direction;
using std::chrono::milliseconds;
using std::chrono::seconds;

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

// A quota of 1 MB/s in both directions, of which a debt is left for this long.
std::shared_ptr<Bandwidth> in_debt(Direction direction, milliseconds time) {
  const auto account = quota::SharedPage<quota::Account>::create("account");
  REQUIRE(account);
  (**account)->to_device_bytes_per_second = 1'000'000;
  (**account)->to_host_bytes_per_second = 1'000'000;
  Usage usage;
  usage.account = *account;
  auto bandwidth = std::make_shared<Bandwidth>(usage);
  bandwidth->charge(direction, static_cast<uint64_t>((time + Bandwidth::kBurst).count()) * 1000);
  REQUIRE(bandwidth->debt(direction) > std::chrono::nanoseconds(0));
  return bandwidth;
}

// A session's connection, which its client can resume: the worker's side, and the client's socket.
struct ResumableSession {
  explicit ResumableSession(std::shared_ptr<Bandwidth> bandwidth) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    client = ends[0];
    auto carrier = transport::adopt_stream(ends[1], "the client", {});
    REQUIRE(carrier);
    auto inner = std::make_unique<transport::ResumableConnection>(std::move(*carrier));
    inner->start();
    resumable = inner.get();
    connection = std::make_unique<MeteredConnection>(std::move(inner), std::move(bandwidth));
  }
  ~ResumableSession() { ::close(client); }
  ResumableSession(const ResumableSession&) = delete;
  ResumableSession& operator=(const ResumableSession&) = delete;

  int client;
  transport::ResumableConnection* resumable;
  std::unique_ptr<MeteredConnection> connection;
};

// True if the wait has ended before long. Otherwise an interrupt ends it.
bool ends(std::future<Result<Ready>>& waiting, transport::Connection& connection) {
  if (waiting.wait_for(seconds(10)) == std::future_status::ready) return true;
  connection.interrupt();
  return false;
}

}  // namespace

TEST_CASE("an interrupt that comes when the debt is paid off ends the wait") {
  const auto bandwidth = in_debt(Direction::to_device, milliseconds(30));
  auto inner = std::make_unique<InterruptedLate>();
  InterruptedLate& carrier = *inner;
  MeteredConnection connection(std::move(inner), bandwidth);
  carrier.outer = &connection;
  const auto interrupted = connection.wait(true, false, std::nullopt);
  REQUIRE(interrupted);
  CHECK(*interrupted == Ready::none);
  const auto ready = connection.wait(true, false, std::nullopt);
  REQUIRE(ready);
  CHECK(*ready == Ready::receive);
}

TEST_CASE("the end of a resumable session ends a wait for the debt") {
  ResumableSession session(in_debt(Direction::to_device, seconds(60)));
  auto waiting =
      testing::start_until_asleep([&] { return session.connection->wait(true, false, std::nullopt); });
  SECTION("closed by the worker") {
    session.connection->close();
  }
  SECTION("given up after a break") {
    session.resumable->break_carrier({ErrorCode::lost, "cut"});
    session.resumable->give_up({ErrorCode::closed, "the client has not returned"});
  }
  REQUIRE(ends(waiting, *session.connection));
  const auto ready = waiting.get();
  REQUIRE_FALSE(ready);
  CHECK(ready.error().code == ErrorCode::closed);
}

TEST_CASE("an interrupt ends the receiver's wait while a sender waits for the debt") {
  const ResumableSession session(in_debt(Direction::to_host, seconds(60)));
  auto sending =
      testing::start_until_asleep([&] { return session.connection->wait(false, true, std::nullopt); });
  session.connection->interrupt();
  REQUIRE(sending.wait_for(milliseconds(50)) == std::future_status::timeout);
  const auto start = transport::Clock::now();
  const auto interrupted = session.connection->wait(true, false, start + seconds(60));
  REQUIRE(interrupted);
  CHECK(*interrupted == Ready::none);
  CHECK(transport::Clock::now() - start < seconds(30));

  session.connection->close();
  CHECK(sending.wait_for(seconds(10)) == std::future_status::ready);
  const std::vector<std::byte> block(2 * MeteredConnection::kAlways);
  const iovec part{const_cast<std::byte*>(block.data()), block.size()};
  CHECK_FALSE(session.connection->send_some({&part, 1}));
}

TEST_CASE("an interrupt ends a wait for room and for the debt of the other direction") {
  const ResumableSession session(in_debt(Direction::to_device, seconds(60)));
  const std::vector<std::byte> block(1 << 20);
  const iovec part{const_cast<std::byte*>(block.data()), block.size()};
  for (auto sent = session.resumable->send_some({&part, 1}); sent && *sent != 0;)
    sent = session.resumable->send_some({&part, 1});
  auto waiting =
      testing::start_until_asleep([&] { return session.connection->wait(true, true, std::nullopt); });
  session.connection->interrupt();
  CHECK(waiting.wait_for(seconds(10)) == std::future_status::ready);
  session.connection->close();
}
