// Tests that the connections of monitoring clients are limited in number, duration and rate, whatever their
// peers do.
#include "server/poold/monitors/monitors.h"

#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <functional>
#include <thread>

#include "protocol/wire/frame.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::server;
using namespace std::chrono_literals;

namespace {

class Watched {
 public:
  explicit Watched(const Monitors::Limits& limits)
      : monitors_(context_, limits,
                  {.describe =
                       [this](const Client&) {
                         return shown_ ? std::optional(control::HelloReply()) : std::nullopt;
                       },
                   .look =
                       [this](const Client&) {
                         ++looks_;
                         return shown_ ? std::optional(state_) : std::nullopt;
                       }}) {}
  ~Watched() {
    monitors_.close();
    for (const int end : ends_) ::close(end);
  }

  // Admits a client and returns the client's end of its connection.
  int admit(const std::string& tenant) {
    int pair[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    Client client{.descriptor = pair[0], .tenant = tenant};
    REQUIRE(monitors_.admit(client));
    ends_.push_back(pair[1]);
    run(0ms);
    REQUIRE(read_answer(pair[1]));
    return pair[1];
  }
  void run(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    do {
      context_.restart();
      context_.run_for(std::min<std::chrono::steady_clock::duration>(1ms, time + 1ms));
    } while (std::chrono::steady_clock::now() < end);
  }
  // Runs until the condition holds; false after kPatience.
  bool run_until(const std::function<bool()>& condition) {
    return gpupool::testing::eventually([&] {
      run(0ms);
      return condition();
    });
  }
  void ask(int end, const wire::Preamble& question = {}) {
    REQUIRE(::write(end, &question, sizeof question) == sizeof question);
  }
  // Reads an answer that has already arrived; false if there is none or the connection is closed.
  bool read_answer(int end) {
    wire::Preamble preamble;
    if (::recv(end, &preamble, sizeof preamble, MSG_DONTWAIT) != sizeof preamble) return false;
    std::string body(preamble.length, '\0');
    return preamble.length == 0 ||
           ::recv(end, body.data(), body.size(), MSG_DONTWAIT) == static_cast<ssize_t>(body.size());
  }
  bool has_ended(int end) {
    char byte;
    return ::recv(end, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
  }
  Monitors& monitors() { return monitors_; }
  unsigned looks() const { return looks_; }
  void hide() { shown_ = false; }
  control::MonitorState& state() { return state_; }

 private:
  asio::io_context context_{1};
  bool shown_ = true;
  unsigned looks_ = 0;
  control::MonitorState state_;
  Monitors monitors_;
  std::vector<int> ends_;
};

constexpr Monitors::Limits kLimits{
    .of_tenant = 3, .all = 5, .between_answers = 0ms, .silence = 10'000ms, .patience = 10'000ms};

}  // namespace

TEST_CASE("a watcher is answered as often as it asks") {
  Watched watched(kLimits);
  const int end = watched.admit("a");
  for (unsigned i = 1; i <= 5; ++i) {
    watched.ask(end);
    CHECK(watched.run_until([&] { return watched.read_answer(end); }));
    CHECK(watched.looks() == i);
  }
  CHECK(watched.monitors().count() == 1);
}

TEST_CASE("a watcher that floods is answered at poold's pace") {
  Watched watched({.between_answers = 50ms});
  const int end = watched.admit("a");
  const wire::Preamble question;
  while (::send(end, &question, sizeof question, MSG_DONTWAIT) == sizeof question)
    continue;  // fills the socket buffer
  const auto start = std::chrono::steady_clock::now();
  CHECK(watched.run_until([&] { return watched.looks() >= 3; }));
  CHECK(std::chrono::steady_clock::now() - start >= 100ms);  // the first answer is not delayed
}

TEST_CASE("an invalid question closes the connection of a watcher") {
  for (const wire::Preamble wrong :
       {wire::Preamble{.magic = 1}, wire::Preamble{.length = 1}, wire::Preamble{.length = 0xffffffff}}) {
    Watched watched(kLimits);
    const int end = watched.admit("a");
    watched.ask(end, wrong);
    CHECK(watched.run_until([&] { return watched.has_ended(end) && watched.monitors().count() == 0; }));
    CHECK(watched.looks() == 0);
  }
}

TEST_CASE("a watcher that disconnects is removed even in the middle of a question") {
  Watched watched(kLimits);
  const int end = watched.admit("a");
  const char part[3] = {};
  REQUIRE(::write(end, part, sizeof part) == sizeof part);
  watched.run(5ms);
  CHECK(watched.monitors().count() == 1);
  ::shutdown(end, SHUT_RDWR);
  CHECK(watched.run_until([&] { return watched.monitors().count() == 0; }));
}

TEST_CASE("idle watchers and watchers that do not read are disconnected") {
  Watched watched({.between_answers = 0ms, .silence = 50ms, .patience = 50ms});
  const int silent = watched.admit("a");
  CHECK(watched.run_until([&] { return watched.has_ended(silent); }));
  for (int i = 0; i < 100'000; ++i) watched.state().add_sessions()->set_number(1ull << 60);
  const int deaf = watched.admit("a");
  watched.ask(deaf);
  CHECK(watched.run_until([&] { return watched.monitors().count() == 0; }));
  CHECK(watched.looks() == 1);
}

TEST_CASE(
    "a tenant at its limit loses its longest idle watcher and otherwise the tenant with most watchers loses "
    "one") {
  Watched watched(kLimits);
  const int first = watched.admit("a"), second = watched.admit("a"), third = watched.admit("a");
  watched.ask(first);  // the second one has then been idle longest
  CHECK(watched.run_until([&] { return watched.looks() == 1; }));
  const int fourth = watched.admit("a");
  CHECK(watched.has_ended(second));
  CHECK(watched.monitors().count() == 3);
  const int other = watched.admit("b");
  (void)watched.admit("c");
  CHECK(watched.monitors().count() == 5);
  (void)watched.admit("d");
  CHECK(watched.monitors().count() == 5);
  CHECK(watched.has_ended(third));
  CHECK_FALSE(watched.has_ended(fourth));
  CHECK_FALSE(watched.has_ended(other));
}

TEST_CASE("a watcher whose tenant is gone gets no more answers") {
  Watched watched(kLimits);
  const int end = watched.admit("a");
  watched.hide();
  watched.ask(end);
  CHECK(watched.run_until([&] { return watched.has_ended(end); }));
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  Client client{.descriptor = pair[0], .tenant = "a"};
  CHECK_FALSE(watched.monitors().admit(client));
  CHECK(client.descriptor == pair[0]);  // the caller keeps it, to send the reason
  ::close(pair[0]);
  ::close(pair[1]);
}
