// Tests that the log names a command that takes long and what it waits for, and that its signs of life hold
// up nothing.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "common/log/log.h"
#include "protocol/images/fatbin.h"
#include "protocol/wire/images.h"
#include "server/quota/turn_word.h"
#include "tests/server/worker/pooled_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using wire::Command;

namespace {

// Captures this process's log for its own lifetime.
class LogReader {
 public:
  LogReader() {
    REQUIRE(::pipe(ends_) == 0);
    log::start(ends_[1], log::Level::info, log::Format::text, "worker");
  }
  ~LogReader() {
    log::start(STDERR_FILENO, log::Level::off, log::Format::text, "test");
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  // Returns the next line with this event; empty after `patience`.
  std::string await(const std::string& event, std::chrono::milliseconds patience = std::chrono::seconds(30)) {
    const auto stop = std::chrono::steady_clock::now() + patience;
    do {
      for (size_t end; (end = read_.find('\n')) != std::string::npos;) {
        const std::string line = read_.substr(0, end);
        read_.erase(0, end + 1);
        if (line.find(event) != std::string::npos) return line;
      }
      pollfd polled{ends_[0], POLLIN, 0};
      char bytes[4096];
      if (::poll(&polled, 1, 100) == 1)
        read_.append(bytes, static_cast<size_t>(::read(ends_[0], bytes, sizeof bytes)));
    } while (std::chrono::steady_clock::now() < stop);
    return {};
  }

 private:
  int ends_[2];
  std::string read_;
};

std::string hexadecimal(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}
bool has(const std::string& line, const std::string& part) {
  return line.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("logs a command that is stuck in the driver and its end") {
  LogReader log;
  std::promise<void> back;
  const auto come_back = back.get_future().share();
  TestClient client(false, nullptr, 0, false, nullptr, false, {},
                    [&](FakeDriver& fake) { fake.in_module_load = [come_back] { come_back.wait(); }; });
  client.retain();
  const std::string ptx = ".version 8.0\n.target sm_80\n.address_size 64\n";
  cuda::Bytes bundle;
  REQUIRE(cuda::bundle({std::as_bytes(std::span(ptx.c_str(), ptx.size() + 1)), {}}, bundle) == CUDA_SUCCESS);
  constexpr uint64_t kUpload = cuda::make_handle(cuda::Kind::upload, 1, 302);
  wire::Buffer part = bytes_of(wire::UploadPart{kUpload, bundle.view().size()});
  part.insert(part.end(), bundle.view().begin(), bundle.view().end());
  client.send(Command::upload_part, part);
  const uint64_t load =
      client.send(Command::load_module,
                  bytes_of(wire::LoadImage{cuda::make_handle(cuda::Kind::module, 1, 301), kUpload}), true);

  const std::string line = log.await("command_takes_long");
  back.set_value();
  CHECK(has(line, " warning "));
  CHECK(has(line, "command=load_module"));
  CHECK(has(line, "context=" + hexadecimal(kContext)));
  CHECK(has(line, "stream=none"));
  CHECK(has(line, "driver_function=cuModuleLoadDataEx"));
  CHECK(has(line, "waits_for=\"the driver\""));
  CHECK(has(line, "seconds="));
  CHECK(has(log.await("long_command_ended"), "command=load_module"));
  Message message = client.receive();
  while (message.header.kind == wire::MessageKind::pong) message = client.receive();
  CHECK(message.header.sequence == load);
  CHECK(message.header.result == CUDA_SUCCESS);
  CHECK(log.await("command_takes_long", std::chrono::milliseconds(200)).empty());
}

TEST_CASE("logs a command that waits for its turn as info and does not log kept commands") {
  using State = quota::Arbiter::Turn::State;
  LogReader log;  // before the session's threads, which write the log
  PooledSession session;
  const auto turn = [&](State state, uint32_t number) {
    (*session.page)->turns[0] = quota::TurnWord::of({.state = state, .bounded = true}, number).word;
    quota::wake_worker((*session.page)->bell);
  };
  const auto fill = [&](uint64_t stream) {
    session.client->call("cuMemsetD8Async",
                         bytes_of(session.client->address(0), uint8_t{1}, uint64_t{16}, stream));
  };
  session.client->send(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(0), 7}));
  fill(stream_handle(0));  // kept in the backlog
  turn(State::closed, 1);
  fill(stream_handle(1));
  const std::string line = log.await("command_takes_long");
  turn(State::open, 2);
  CHECK(has(line, " info "));
  CHECK(has(line, "command=cuMemsetD8Async"));
  CHECK(has(line, "context=" + hexadecimal(kContext)));
  CHECK(has(line, "stream=" + hexadecimal(stream_handle(1))));
  CHECK(has(line, "driver_function=none"));
  CHECK(has(line, "waits_for=\"its turn on the GPU\""));
  CHECK(has(log.await("long_command_ended"), "command=cuMemsetD8Async"));
}

TEST_CASE("a session ends with poold while its client is away and a command runs") {
  LogReader log;
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  auto control = std::make_unique<worker::Control>(ends[1], nullptr);
  const int stop = ::eventfd(0, EFD_CLOEXEC);
  transport::ResumableConnection* connection = nullptr;
  std::promise<void> back;
  {
    TestClient client(
        false, control.get(), 0, false, nullptr, false, {},
        [come_back = back.get_future().share()](FakeDriver& fake) {
          fake.in_new_context = [come_back] { come_back.wait(); };
        },
        [&](worker::SessionStart& start) {
          auto resumable = std::make_unique<transport::ResumableConnection>(std::move(start.connection));
          resumable->start();
          connection = start.resumable = resumable.get();
          start.resume.timeout = std::chrono::minutes(1);
          start.stop_descriptor = stop;
          start.connection = std::move(resumable);
        });
    client.retain();
    CHECK(client.receive().header.kind == wire::MessageKind::pong);
    connection->break_carrier({ErrorCode::lost, "cut"});
    CHECK(!log.await("command_takes_long").empty());  // before the next sign of life
    back.set_value();
    CHECK(!log.await("long_command_ended").empty());
    const uint64_t one = 1;
    REQUIRE(::write(stop, &one, sizeof one) == sizeof one);
    const auto told = std::chrono::steady_clock::now();
    client.finish();
    CHECK(std::chrono::steady_clock::now() - told < std::chrono::seconds(30));
  }
  control.reset();
  for (const int end : {ends[0], ends[1], stop}) ::close(end);
}
