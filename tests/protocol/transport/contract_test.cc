// Part one of the contract of every transport: connecting, waiting, interrupting, closing, handing over.
#include "tests/protocol/transport/contract.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <thread>

#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::transport;
using namespace gpupool::transport::contract;
using Ready = Connection::Ready;

namespace {

bool is(const Result<Ready>& result, Ready wanted) {
  return result && *result == wanted;
}

}  // namespace

TEST_CASE("a listener reports its address and accept ends when it is closed") {
  const auto backend = GENERATE(from_range(backends()));
  auto listener = listen(backend.free_endpoint(), {});
  REQUIRE(listener);
  CHECK((*listener)->endpoint().scheme == backend.scheme);
  const auto heard = (*listener)->endpoint();
  CHECK((heard.scheme != "tcp" || heard.port != 0));

  const auto start = Clock::now();
  const auto late = (*listener)->accept(in(milliseconds(60)));
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::lost);
  CHECK(Clock::now() - start >= milliseconds(60));

  pollfd polled{(*listener)->descriptor(), POLLIN, 0};
  CHECK(::poll(&polled, 1, 0) == 0);
  const auto client = connect((*listener)->endpoint(), {});
  REQUIRE(client);
  CHECK(::poll(&polled, 1, 10'000) == 1);
  CHECK((*listener)->accept(in(kLong)));

  std::thread closer([&, waiting = ::gettid()] {
    wait_until_asleep(waiting);
    (*listener)->close();
  });
  const auto closed = (*listener)->accept(std::nullopt);
  closer.join();
  REQUIRE_FALSE(closed);
  CHECK(closed.error().code == ErrorCode::closed);
  CHECK_FALSE(connect((*listener)->endpoint(), {}));
}

TEST_CASE("a refused connection reports the address and the reason and what to do") {
  const auto backend = GENERATE(from_range(backends()));
  const Endpoint endpoint = backend.nobody_listens();
  const auto connection = connect(endpoint, {});
  REQUIRE_FALSE(connection);
  CHECK(connection.error().code == ErrorCode::reset);
  const std::string& message = connection.error().message;
  CHECK(message.find(endpoint.text()) != std::string::npos);
  CHECK(message.find("refused") != std::string::npos);
  CHECK(message.find("poold") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
}

TEST_CASE("wait reports only what was asked for") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  CHECK(is(pair.client->wait(true, false, in(milliseconds(0))), Ready::none));
  CHECK(is(pair.client->wait(true, true, in(kLong)), Ready::send));
  CHECK(is(pair.client->wait(false, true, std::nullopt), Ready::send));
  REQUIRE(send_text(*pair.server, "x"));
  CHECK(is(pair.client->wait(true, false, std::nullopt), Ready::receive));
  CHECK(is(pair.client->wait(true, true, in(kLong)), Ready::both));
  CHECK(is(pair.client->wait(false, false, in(milliseconds(10))), Ready::none));
  CHECK(receive_text(*pair.client, 1) == "x");
  CHECK(is(pair.client->wait(true, false, in(milliseconds(0))), Ready::none));
  std::byte byte{};
  const auto nothing = pair.client->receive_some({&byte, 1});
  REQUIRE(nothing);
  CHECK(*nothing == 0);
}

TEST_CASE("wait keeps its deadline") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  auto start = Clock::now();
  CHECK(is(pair.client->wait(true, false, start + milliseconds(80)), Ready::none));
  CHECK(Clock::now() - start >= milliseconds(80));
  CHECK(Clock::now() - start < kLong);
  start = Clock::now();
  CHECK(is(pair.client->wait(true, false, start - std::chrono::hours(1)), Ready::none));
  CHECK(Clock::now() - start < kLong);
}

TEST_CASE("an interrupt ends one wait, the present one or the next") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  pair.client->interrupt();
  pair.client->interrupt();
  CHECK(is(pair.client->wait(true, false, std::nullopt), Ready::none));
  const auto start = Clock::now();
  CHECK(is(pair.client->wait(true, false, in(milliseconds(50))), Ready::none));
  CHECK(Clock::now() - start >= milliseconds(50));

  std::thread other([&, waiting = ::gettid()] {
    wait_until_asleep(waiting);
    pair.client->interrupt();
  });
  CHECK(is(pair.client->wait(true, false, std::nullopt), Ready::none));
  other.join();
  pair.client->interrupt();
  CHECK(is(pair.client->wait(false, false, std::nullopt), Ready::none));
  REQUIRE(send_text(*pair.server, "still works"));
  CHECK(receive_text(*pair.client, 11) == "still works");
}

TEST_CASE("an interrupt ends the wait of a thread that receives, not of one that sends") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  std::vector<std::byte> sent(fill(*pair.client));
  auto sending = start_until_asleep([&] { return pair.client->wait(false, true, std::nullopt); });
  pair.client->interrupt();
  REQUIRE(sending.wait_for(milliseconds(50)) == std::future_status::timeout);
  const auto start = Clock::now();
  CHECK(is(pair.client->wait(true, false, in(kLong)), Ready::none));
  CHECK(Clock::now() - start < kLong / 2);
  REQUIRE(receive_exact(*pair.server, sent, in(kLong)));
  CHECK(is(sending.get(), Ready::send));
}

TEST_CASE("the helpers continue after an interrupt and time out at their deadline") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  pair.client->interrupt();
  std::byte byte{};
  const auto late = receive_exact(*pair.client, {&byte, 1}, in(milliseconds(60)));
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::lost);
  CHECK(late.error().message.find(pair.client->peer()) != std::string::npos);
  pair.server->interrupt();
  fill(*pair.server);
  pair.server->interrupt();
  const auto block = pattern(1 << 20, 1);
  const iovec buffer = as_iovec(block);
  const auto stuck = send_all(*pair.server, {&buffer, 1}, in(milliseconds(60)));
  REQUIRE_FALSE(stuck);
  CHECK(stuck.error().code == ErrorCode::lost);
}

TEST_CASE("the peer sees a close, after everything that was sent before it") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  REQUIRE(send_text(*pair.server, "last words"));
  pair.server->close();
  pair.server->close();
  CHECK(is(pair.client->wait(true, false, in(kLong)), Ready::receive));
  CHECK(receive_text(*pair.client, 10) == "last words");
  CHECK(is(pair.client->wait(true, false, in(kLong)), Ready::receive));
  std::byte byte{};
  const auto end = pair.client->receive_some({&byte, 1});
  REQUIRE_FALSE(end);
  CHECK(end.error().code == ErrorCode::closed);
  CHECK(end.error().message.find(pair.client->peer()) != std::string::npos);
  const auto nothing = receive_exact(*pair.client, {&byte, 1}, std::nullopt);
  REQUIRE_FALSE(nothing);
  CHECK(nothing.error().code == ErrorCode::closed);
}

TEST_CASE("data sent before a close is readable even if the peer left data unread") {
  const auto backend = GENERATE(from_range(backends()));
  Pair pair = make_pair(backend);
  REQUIRE(send_text(*pair.client, std::string(100'000, 'c')));
  REQUIRE(is(pair.server->wait(true, false, in(kLong)), Ready::receive));
  REQUIRE(send_text(*pair.server, "last words"));
  pair.server.reset();
  CHECK(receive_text(*pair.client, 10) == "last words");
}

TEST_CASE("a connection closed here wakes its own waits and refuses its own calls") {
  const auto backend = GENERATE(from_range(backends()));
  const Pair pair = make_pair(backend);
  std::thread closer([&, waiting = ::gettid()] {
    wait_until_asleep(waiting);
    pair.client->close();
  });
  std::byte byte{};
  const auto received = receive_exact(*pair.client, {&byte, 1}, std::nullopt);
  closer.join();
  REQUIRE_FALSE(received);
  CHECK(received.error().code == ErrorCode::closed);
  const iovec buffer{&byte, 1};
  const auto sent = send_all(*pair.client, {&buffer, 1}, in(kLong));
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code == ErrorCode::closed);
}

TEST_CASE("a close in the middle of a message is a lost connection") {
  const auto backend = GENERATE(from_range(backends()));
  Pair pair = make_pair(backend);
  REQUIRE(send_text(*pair.server, "half"));
  pair.server.reset();
  std::vector<std::byte> whole(8);
  const auto received = receive_exact(*pair.client, whole, in(kLong));
  REQUIRE_FALSE(received);
  CHECK(received.error().code == ErrorCode::lost);
  CHECK(received.error().message.find(pair.client->peer()) != std::string::npos);
  CHECK(received.error().message.find("middle") != std::string::npos);
}

TEST_CASE("sending to a closed peer fails without a signal") {
  const auto backend = GENERATE(from_range(backends()));
  Pair pair = make_pair(backend);
  pair.server.reset();
  const std::vector<std::byte> block(1 << 16);
  const iovec buffer = as_iovec(block);
  Result<void> sent;
  for (int round = 0; round < 1000 && sent; ++round) sent = send_all(*pair.client, {&buffer, 1}, in(kLong));
  REQUIRE_FALSE(sent);
  CHECK((sent.error().code == ErrorCode::reset ||
         (sent.error().code == ErrorCode::lost && backend.scheme == "rdma")));
  CHECK(sent.error().message.find(pair.client->peer()) != std::string::npos);
}

TEST_CASE("a connection is handed over during the hello with the data in flight") {
  auto backend = GENERATE(from_range(backends()));
  if (backend.scheme == "tls") return testing::report_skip("tls: make_pair() hands it over already");
  backend.upgraded = false;
  Pair pair = make_pair(backend);
  REQUIRE(send_text(*pair.client, "before, after"));
  CHECK(receive_text(*pair.server, 7) == "before,");
  const int descriptor = pair.server->release_descriptor();
  REQUIRE(descriptor >= 0);
  CHECK(pair.server->release_descriptor() == -1);
  const std::string peer = pair.server->peer();
  pair.server.reset();  // leaves the connection open
  auto adopted = adopt(backend.scheme, descriptor, {});
  REQUIRE(adopted);
  CHECK((*adopted)->peer() == peer);
  CHECK(receive_text(**adopted, 6) == " after");
  REQUIRE(send_text(**adopted, "answer"));
  CHECK(receive_text(*pair.client, 6) == "answer");
  CHECK((::fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("a descriptor that is not a connection is rejected and closed") {
  const auto backend = GENERATE(from_range(backends()));
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const auto adopted = adopt(backend.scheme, ends[0], {});
  REQUIRE_FALSE(adopted);
  CHECK(adopted.error().code == ErrorCode::invalid);
  CHECK(::fcntl(ends[0], F_GETFD) == -1);
  ::close(ends[1]);
}

TEST_CASE("connections leave no descriptors behind, and programs that the app starts inherit none") {
  const auto backend = GENERATE(from_range(backends()));
  make_pair(backend);
  const auto before = open_descriptors();
  const bool slow =
      std::getenv("GPUPOOL_SOFTROCE") != nullptr && backend.scheme == "rdma" && backend.upgraded;
  const int rounds = slow ? 10 : 100;
  for (int round = 0; round < rounds; ++round) {
    const Pair pair = make_pair(backend);
    CHECK_FALSE(connect(backend.nobody_listens(), {}));
    for (const int descriptor : open_descriptors()) {
      const int flags = ::fcntl(descriptor, F_GETFD);  // -1: descriptor of the listing itself
      if (!before.contains(descriptor) && flags >= 0) CHECK((flags & FD_CLOEXEC) != 0);
    }
  }
  CHECK(open_descriptors() == before);
}
