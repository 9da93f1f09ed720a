// A connection that a Reconnector mends, and its server: the test takes each connection that the client
// makes, and answers its hello as it likes.
#pragma once
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/session/reconnector.h"
#include "protocol/peers/proof.h"
#include "protocol/wire/frame.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

namespace gpupool::client::test {

using testing::kPatience;
using transport::Clock;

inline constexpr const char* kKey = "the key of the session";
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

inline Reconnector::Terms terms_for(const Server& server, const std::string& session = "session one") {
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

inline std::unique_ptr<transport::ResumableConnection> connect_to(const Server& server) {
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
inline bool proves(const hello::Hello& hello, uint64_t attempt, uint64_t received) {
  return hello.resume_attempt == attempt && hello.resume_received == received &&
         peers::proves_resume(hello.resume_proof, kKey, kLink, attempt, received);
}

}  // namespace gpupool::client::test
