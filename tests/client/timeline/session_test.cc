// Tests what a session with a timeline says to its server, which the test plays, each time in a child
// process.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "client/process/process.h"
#include "client/session/call.h"
#include "protocol/wire/timeline.h"
#include "tests/client/child.h"
#include "tests/client/timeline/events.h"
#include "tests/support/catch.h"
#include "tests/support/fake_worker.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using gpupool::client::timeline::test::count_named;
using wire::Command;

namespace {

void answer_clock(FakeWorker& worker, const ReceivedCommand& command) {
  const auto time = static_cast<uint64_t>(timeline::now());
  const wire::TimelineBatch batch{
      .clock = 1, .answers = command.header.sequence, .received = time, .sent = time};
  worker.send(wire::MessageKind::timeline, 0, bytes_of(batch));
}

// Connects a process to a worker, makes a call that waits, and exits. Returns what the worker has seen: "H"
// if the hello wanted a timeline, and a "c" for each read_clock.
std::string session(const Environment& more, bool server_makes_timelines) {
  Environment environment{
      {"GPUPOOL_TRANSPORT", "tcp"}, {"GPUPOOL_SHM", "0"}, {"GPUPOOL_CONNECT_TIMEOUT_MS", "30000"}};
  environment.insert(more.begin(), more.end());
  const auto got = in_child(
      environment,
      [&]() -> std::string {
        FakeWorker& worker = *new FakeWorker;
        worker.offer.makes_timeline = server_makes_timelines;
        worker.on(Command::read_clock,
                  [&worker](const ReceivedCommand& command) { answer_clock(worker, command); });
        ::setenv("GPUPOOL", worker.url().c_str(), 1);
        if (initialise() != CUDA_SUCCESS) return "cannot connect";
        CUcontext context = nullptr;
        if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
            cuCtxSetCurrent(context) != CUDA_SUCCESS || cuCtxSynchronize() != CUDA_SUCCESS)
          return "cannot use the device";
        std::string seen = worker.hellos().at(0).wants_timeline ? "H" : "";
        return seen + std::string(worker.received(Command::read_clock).size(), 'c');
      },
      true);
  INFO(got.errors);
  return got.result;
}

// When the child began to exit, and where it writes how many milliseconds that took.
std::chrono::steady_clock::time_point exit_began;
std::string exit_file;
void write_exit_time() {
  const auto took = std::chrono::steady_clock::now() - exit_began;
  std::ofstream(exit_file) << std::chrono::duration_cast<std::chrono::milliseconds>(took).count();
}

// Answers readings of the clock until the last one, which gets no answer, nor do others then.
FakeWorker& worker_without_last_answer() {
  FakeWorker& worker = *new FakeWorker;
  worker.offer.makes_timeline = true;
  worker.on(Command::read_clock, [&worker](const ReceivedCommand& command) {
    const auto asked = worker.received(Command::read_clock);
    if (std::none_of(asked.begin(), asked.end(), [](const ReceivedCommand& one) {
          return one.as<wire::ReadClock>().flags == wire::kFlushTimeline;
        }))
      answer_clock(worker, command);
  });
  return worker;
}

}  // namespace

TEST_CASE("an exit waits for all silent servers together") {
  constexpr int kServers = 8;
  const TemporaryFolder folder;
  exit_file = folder.path() / "milliseconds";
  const auto got = in_child(
      {{"GPUPOOL_TRANSPORT", "tcp"},
       {"GPUPOOL_SHM", "0"},
       {"GPUPOOL_CONNECT_TIMEOUT_MS", "30000"},
       {"GPUPOOL_TIMELINE", folder.path() / "out.json"}},
      []() -> std::string {
        std::atexit(write_exit_time);  // runs after the client's handler, which is registered later
        std::string servers;
        for (int i = 0; i < kServers; ++i) servers += (i ? "," : "") + worker_without_last_answer().url();
        ::setenv("GPUPOOL", servers.c_str(), 1);
        if (initialise() != CUDA_SUCCESS) return "cannot connect";
        exit_began = std::chrono::steady_clock::now();
        return "connected";
      },
      true);
  INFO(got.errors);
  REQUIRE(got.result == "connected");
  const int milliseconds = std::stoi(timeline::test::content(exit_file));
  CHECK(milliseconds >= 1000);
  CHECK(milliseconds < 1000 * kServers / 2);
}

TEST_CASE("without a timeline a session asks for none") {
  CHECK(session({}, true).empty());
}

TEST_CASE("a session with a timeline aligns the clocks first, and writes its calls") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "out.json";
  const std::string seen = session({{"GPUPOOL_TIMELINE", file}}, true);
  CHECK(seen.starts_with("Hccccc"));
  CHECK(count_named(file, "cuCtxSynchronize") == 1);
  CHECK(count_named(file, "wait: reply") >= 1);
  CHECK(count_named(file, "end of the timeline") == 1);
}

TEST_CASE("a server of an older release is not asked, and the calls are written") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "out.json";
  CHECK(session({{"GPUPOOL_TIMELINE", file}}, false) == "H");
  CHECK(count_named(file, "cuCtxSynchronize") == 1);
}

TEST_CASE("a timeline that cannot be written is named, and the program goes on") {
  CHECK(session({{"GPUPOOL_TIMELINE", "/nonexistent/out.json"}}, true).empty());
}
