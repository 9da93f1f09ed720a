// Tests how the client mends a broken connection. The test plays the server: it takes each connection that
// the client makes, and answers its hello as it likes.
#include "client/session/reconnector.h"

#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "protocol/peers/proof.h"
#include "protocol/wire/frame.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::testing;
using Catch::Matchers::ContainsSubstring;
using std::chrono::milliseconds;
using transport::Clock;

namespace {

constexpr const char* kKey = "the key of the session";
constexpr uint32_t kLink = 3;

// A connection that the client has made to the server.
struct Accepted {
  std::unique_ptr<transport::Connection> connection;
  hello::Hello hello;

  void answer(const hello::HelloReply& reply) const {
    const std::string text = hello::encode(reply);
    const wire::Preamble preamble{.length = static_cast<uint32_t>(text.size())};
    send(std::string(reinterpret_cast<const char*>(&preamble), sizeof preamble) + text);
  }
  void resume(uint64_t received) const {
    hello::HelloReply reply;
    reply.resume_received = received;
    answer(reply);
  }
  void send(const std::string& text) const {
    const iovec part{const_cast<char*>(text.data()), text.size()};
    REQUIRE(transport::send_all(*connection, {&part, 1}, Clock::now() + kPatience));
  }
  std::string receive(size_t size) const {
    std::string text(size, '\0');
    REQUIRE(transport::receive_exact(*connection, std::as_writable_bytes(std::span(text)),
                                     Clock::now() + kPatience));
    return text;
  }
};

class Server {
 public:
  transport::Endpoint endpoint() const { return listener_->endpoint(); }
  // Takes the next connection; it has no hello yet.
  Accepted accept() const {
    auto accepted = listener_->accept(Clock::now() + kPatience);
    REQUIRE(accepted);
    return {std::move(*accepted), {}};
  }
  // Takes the next connection and its hello.
  Accepted accept_hello() const {
    Accepted accepted = accept();
    wire::Preamble preamble;
    const std::string head = accepted.receive(sizeof preamble);
    head.copy(reinterpret_cast<char*>(&preamble), sizeof preamble);
    const auto hello = hello::decode_hello(accepted.receive(preamble.length));
    REQUIRE(hello);
    accepted.hello = *hello;
    return accepted;
  }
  bool is_asked() const { return listener_->accept(Clock::now()).ok(); }
  void refuse_connections() { listener_.reset(); }

 private:
  static std::unique_ptr<transport::Listener> listen() {
    auto listener = transport::listen({"tcp", "127.0.0.1", 0}, {});
    REQUIRE(listener);
    return std::move(*listener);
  }
  std::unique_ptr<transport::Listener> listener_ = listen();
};

Reconnector::Terms terms_for(const Server& server, const std::string& session = "session one") {
  Reconnector::Terms terms;
  terms.server = server.endpoint();
  terms.options.connect_timeout = kPatience;
  terms.hello.session_id = session;
  terms.hello.bulk_link = kLink;
  terms.resume_key = kKey;
  terms.timeout = kPatience;
  terms.name = "the server";
  return terms;
}

std::unique_ptr<transport::ResumableConnection> connect_to(const Server& server) {
  auto connection = transport::connect(server.endpoint(), {});
  REQUIRE(connection);
  return std::make_unique<transport::ResumableConnection>(std::move(*connection));
}

// Returns an object that is never destroyed, but stays reachable.
template <class T>
T& keep(T* object) {
  static std::vector<T*>& all = *new std::vector<T*>;
  all.push_back(object);
  return *object;
}

// The client's end: a connection that is mended, and a thread that reads all the time, as in a session.
// The connection and its Reconnector are never destroyed, as in a program.
class Client {
 public:
  explicit Client(const Server& server)
      : connection_(keep(connect_to(server).release())),
        reconnector_(keep(new Reconnector(connection_, {}))) {}
  ~Client() {
    connection_.close();
    if (reader_.joinable()) reader_.join();
  }
  void start(Reconnector::Terms terms) {
    reconnector_.start(std::move(terms));
    reader_ = std::thread([this] { read(); });
  }
  Reconnector& reconnector() { return reconnector_; }
  transport::ResumableConnection& connection() { return connection_; }
  // Returns whether all of the text was sent.
  std::future<bool> send(std::string text) {
    return std::async(std::launch::async, [this, text = std::move(text)] {
      const iovec part{const_cast<char*>(text.data()), text.size()};
      return transport::send_all(connection_, {&part, 1}, std::nullopt).ok();
    });
  }
  bool await_received(const std::string& text) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return received_.size() >= text.size(); }) &&
           received_ == text;
  }
  // Waits for the end of the session. Returns its reason.
  std::string await_failure() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, kPatience, [&] { return failure_.has_value(); }));
    return failure_->message;
  }

 private:
  void read() {
    std::byte bytes[256];
    for (bool reading = true; reading; changed_.notify_all()) {
      const auto got = connection_.receive_some(bytes);
      if (got && *got == 0) {
        (void)connection_.wait(true, false, std::nullopt);
        continue;
      }
      const std::lock_guard lock(mutex_);
      reading = got.ok();
      if (got)
        received_.append(reinterpret_cast<const char*>(bytes), *got);
      else
        failure_ = got.error();
    }
  }

  transport::ResumableConnection& connection_;
  Reconnector& reconnector_;
  std::mutex mutex_;  // guards received_ and failure_
  std::condition_variable changed_;
  std::string received_;
  std::optional<Error> failure_;
  std::thread reader_;
};

// A client and its server, after the client has sent "hello" and received "one".
struct Line {
  explicit Line(const std::function<void(Reconnector::Terms&)>& change = [](auto&) {}) {
    Reconnector::Terms terms = terms_for(server);
    change(terms);
    client.start(std::move(terms));
    REQUIRE(client.send("hello").get());
    CHECK(first->receive(5) == "hello");
    first->send("one");
    REQUIRE(client.await_received("one"));
  }
  void cut() { first.reset(); }

  Server server;
  Client client{server};
  std::optional<Accepted> first = server.accept();
};

// True if the hello proves that its sender has the session's key, for this attempt and position.
bool proves(const hello::Hello& hello, uint64_t attempt, uint64_t received) {
  return hello.resume_attempt == attempt && hello.resume_received == received &&
         peers::proves_resume(hello.resume_proof, kKey, kLink, attempt, received);
}

}  // namespace

TEST_CASE("reconnector: continues on another connection at the byte where the first one broke") {
  Line line;
  line.cut();
  auto sent = line.client.send(" again");
  const Accepted second = line.server.accept_hello();
  CHECK(second.hello.session_id == "session one");
  CHECK(second.hello.bulk_link == kLink);
  CHECK(proves(second.hello, 1, 3));
  second.resume(5);
  CHECK(second.receive(6) == " again");
  CHECK(sent.get());
  second.send("two");
  CHECK(line.client.await_received("onetwo"));
  CHECK(line.client.connection().times_resumed() == 1);
}

TEST_CASE("reconnector: sends again what the server has not received") {
  Line line;
  line.cut();
  const Accepted second = line.server.accept_hello();
  second.resume(2);
  CHECK(second.receive(3) == "llo");
  CHECK(line.client.send("!").get());
  CHECK(second.receive(1) == "!");
  CHECK(line.client.connection().resent() == 3);
}

TEST_CASE("reconnector: mends every break, and each attempt has a number and a proof of its own") {
  Line line;
  line.cut();
  (void)line.server.accept_hello();  // hangs up instead of an answer
  std::optional<Accepted> third = line.server.accept_hello();
  CHECK(proves(third->hello, 2, 3));
  third->resume(5);
  third->send("two");
  REQUIRE(line.client.await_received("onetwo"));
  third.reset();
  const Accepted fourth = line.server.accept_hello();
  CHECK(proves(fourth.hello, 3, 6));
  fourth.resume(5);
  fourth.send("three");
  CHECK(line.client.await_received("onetwothree"));
}

TEST_CASE("reconnector: tries again when a server stays silent until the deadline, or answers nonsense") {
  Line line([](Reconnector::Terms& terms) { terms.options.connect_timeout = milliseconds(2000); });
  line.cut();
  const Accepted silent = line.server.accept_hello();
  const Accepted other = line.server.accept_hello();
  CHECK(other.hello.resume_attempt == 2);
  other.send("220 mail.example ESMTP: what do you want of this host today?");
  const Accepted good = line.server.accept_hello();
  CHECK(proves(good.hello, 3, 3));
  good.resume(5);
  good.send("two");
  CHECK(line.client.await_received("onetwo"));
}

TEST_CASE("reconnector: gives the session up with the server's reason if it refuses") {
  Line line;
  line.cut();
  const Accepted second = line.server.accept_hello();
  hello::HelloReply refusal;
  refusal.status = hello::Status::denied;
  refusal.reason = "the session was ended by an administrator";
  second.answer(refusal);
  CHECK_THAT(line.client.await_failure(),
             ContainsSubstring("; refused: the session was ended by an administrator"));
  CHECK_FALSE(line.client.send("more").get());
  CHECK(line.client.connection().over());
  CHECK_FALSE(line.server.is_asked());
}

TEST_CASE("reconnector: gives the session up if the server has received what was never sent") {
  Line line;
  line.cut();
  const Accepted second = line.server.accept_hello();
  second.resume(6);
  CHECK_THAT(line.client.await_failure(), ContainsSubstring("has received 6 of 5 bytes"));
  CHECK_FALSE(line.server.is_asked());
}

TEST_CASE("reconnector: gives the session up after its time-out, with the reasons") {
  Line line([](Reconnector::Terms& terms) { terms.timeout = milliseconds(200); });
  const auto begun = Clock::now();
  line.server.refuse_connections();
  line.cut();
  CHECK_THAT(line.client.await_failure(), ContainsSubstring("refused"));
  CHECK(Clock::now() - begun >= milliseconds(200));
}

TEST_CASE("reconnector: stops when the session is closed while the connection is broken") {
  Line line;
  line.cut();
  const Accepted second = line.server.accept_hello();
  line.client.connection().close();
  CHECK_THAT(line.client.await_failure(), ContainsSubstring("closed on this side"));
  second.resume(5);
  CHECK(line.client.connection().times_resumed() == 0);
}

TEST_CASE("reconnector: has another thread read while the connection is resumed") {
  struct Seen {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<bool> calls;
  };
  auto& seen = keep(new Seen);  // all of this is never destroyed, as in Client
  const Server server;
  auto& connection = keep(connect_to(server).release());
  auto& reconnector = keep(new Reconnector(connection, [&seen](bool read) {
    const std::lock_guard lock(seen.mutex);
    seen.calls.push_back(read);
    seen.changed.notify_all();
  }));
  std::optional<Accepted> first = server.accept();
  reconnector.start(terms_for(server));
  first.reset();  // the test does not read, so that the break is noticed only by the end of the bytes
  const Accepted second = server.accept_hello();
  second.resume(0);
  const std::vector<bool> expected{true, false, true, false};  // for the last bytes, and while it is resumed
  std::unique_lock lock(seen.mutex);
  CHECK(seen.changed.wait_for(lock, kPatience, [&] { return seen.calls.size() == expected.size(); }));
  CHECK(seen.calls == expected);
  lock.unlock();
  connection.close();
}

TEST_CASE("reconnector: a session that moves continues with the other server, which mends later breaks") {
  Line line;
  const Server target;
  line.client.reconnector().expect_switch();
  line.cut();  // not mended: the session is about to leave
  auto next = connect_to(target);
  std::optional<Accepted> moved = target.accept();
  next->start();
  line.client.reconnector().switch_to(terms_for(target, "session two"), std::move(next));
  CHECK_FALSE(line.server.is_asked());
  CHECK(line.client.send("moved").get());
  CHECK(moved->receive(5) == "moved");
  moved->send("two");
  REQUIRE(line.client.await_received("onetwo"));

  moved.reset();
  const Accepted again = target.accept_hello();
  CHECK(again.hello.session_id == "session two");
  CHECK(proves(again.hello, 1, 3));  // counted from the move on
  again.resume(5);
  again.send("three");
  CHECK(line.client.await_received("onetwothree"));
}

TEST_CASE("reconnector: a session that fails while it moves moves no further") {
  const Server server, target;
  auto& connection = keep(connect_to(server).release());
  auto& ended = keep(new std::promise<void>);
  auto& closed = keep(new std::promise<void>);
  auto& reconnector = keep(new Reconnector(connection, [&, waits = true](bool read) mutable {
    if (!read || !std::exchange(waits, false)) return;
    ended.set_value();
    closed.get_future().wait();
  }));
  std::optional<Accepted> first = server.accept();
  reconnector.start(terms_for(server));
  reconnector.expect_switch();
  first.reset();
  ended.get_future().wait();  // the reconnector's thread has not seen why yet

  auto next = connect_to(target);
  const Accepted adopted = target.accept();
  next->start();
  auto switched = std::async(
      std::launch::async, [&] { reconnector.switch_to(terms_for(target, "session two"), std::move(next)); });
  while (!connection.broken()) std::this_thread::yield();  // switch_to() has broken it, and waits
  connection.close();
  closed.set_value();
  CHECK(switched.wait_for(kPatience) == std::future_status::ready);
  CHECK(connection.over());
  std::byte byte;
  CHECK_FALSE(
      transport::receive_exact(*adopted.connection, {&byte, 1}, Clock::now() + kPatience));  // its end
}

TEST_CASE("reconnector: a session that has nowhere to go ends with the reason") {
  Line line;
  line.client.reconnector().expect_switch();
  line.cut();
  line.client.reconnector().give_up({ErrorCode::lost, "the suspended session was dropped"});
  CHECK(line.client.await_failure() == "the suspended session was dropped");
  CHECK_FALSE(line.server.is_asked());
}
