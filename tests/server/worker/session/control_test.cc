// Tests the worker's end of the control socket: dispatch to handlers, messages that arrive before their
// handler, and poold's exit.
#include "server/worker/session/control.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using server::ControlKind;

namespace {

constexpr ControlKind kSome = ControlKind::stop_locking;
constexpr ControlKind kOther = ControlKind::dump_wanted;

struct Poold {
  Poold() { REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0); }
  ~Poold() {
    leave();
    ::close(ends[1]);
  }
  void leave() {
    if (ends[0] >= 0) ::close(std::exchange(ends[0], -1));
  }
  template <ControlKind kind>
  void send(uint64_t number, int descriptor = -1) {
    REQUIRE(server::send_control<kind>(ends[0], {.question = number}, "", descriptor));
  }
  int ends[2];
};

bool readable(int descriptor, int milliseconds) {
  pollfd polled{descriptor, POLLIN, 0};
  return ::poll(&polled, 1, milliseconds) == 1;
}

}  // namespace

TEST_CASE("delivers each message in order to the handler of its kind including earlier ones") {
  Poold poold;
  Control control(poold.ends[1], nullptr);
  poold.send<kSome>(1);
  poold.send<kOther>(7);
  std::promise<void> all;
  std::vector<uint64_t> some;
  control.handle(kOther, [](server::ControlMessage) {});
  control.handle(kSome, [&](server::ControlMessage message) {
    some.push_back(message.body<server::packet::StopLocking>().question);
    if (some.size() == 3) all.set_value();
  });
  poold.send<kSome>(2);
  poold.send<kSome>(3);
  REQUIRE(all.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  control.handle(kSome, nullptr);
  CHECK(some == std::vector<uint64_t>{1, 2, 3});
}

TEST_CASE("closes descriptors that no handler takes") {
  Poold poold;
  int pipe_ends[2];
  REQUIRE(::pipe2(pipe_ends, O_CLOEXEC) == 0);
  {
    Control control(poold.ends[1], nullptr);
    control.handle(kSome, nullptr);
    poold.send<kSome>(1, pipe_ends[1]);
    for (uint64_t i = 0; i < 100; ++i) poold.send<kOther>(i, pipe_ends[1]);  // never gets a handler
    ::close(pipe_ends[1]);
    poold.leave();
    CHECK(readable(control.end_descriptor(), 10'000));
  }
  ::fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
  char byte = 0;
  CHECK(::read(pipe_ends[0], &byte, 1) == 0);
  ::close(pipe_ends[0]);
}

TEST_CASE("detects the end of poold and does not mistake messages for it") {
  Poold poold;
  std::promise<void> gone;
  Control control(poold.ends[1], [&] { gone.set_value(); });
  std::promise<void> got;
  control.handle(kSome, [&](server::ControlMessage) { got.set_value(); });
  poold.send<kSome>(1);
  REQUIRE(got.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  CHECK_FALSE(readable(control.end_descriptor(), 0));
  REQUIRE(control.send<kOther>({.question = 5}));
  const auto received = server::receive_control(poold.ends[0]);
  REQUIRE(received);
  CHECK(received->body<server::packet::DumpQuestion>().question == 5);
  poold.leave();
  CHECK(readable(control.end_descriptor(), 10'000));
  CHECK(gone.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready);
}
