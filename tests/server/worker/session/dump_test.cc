// Tests the dump that a session sends to poold, also while its executor is blocked.
#include "server/worker/session/dump.h"

#include <chrono>
#include <future>

#include "protocol/control/dump.pb.h"
#include "protocol/images/fatbin.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/images.h"
#include "server/quota/turn_word.h"
#include "tests/server/worker/pooled_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using server::ControlKind;
using wire::Command;

namespace {

constexpr uint64_t kFirst = stream_handle(0), kSecond = stream_handle(1);
constexpr uint64_t kHold = 77;

struct Dumped : PooledSession {
  using PooledSession::PooledSession;

  admin::WorkerDump dump() {
    say<ControlKind::dump_wanted>({.question = ++question});
    while (true) {
      const auto message = hear();
      if (message.kind != ControlKind::dump) continue;
      CHECK(message.body<server::packet::DumpQuestion>().question == question);
      admin::WorkerDump dump;
      REQUIRE(dump.ParseFromString(message.payload));
      return dump;
    }
  }
  // Returns the first dump for which `holds` is true, or the last one after ten seconds.
  admin::WorkerDump await_dump(const std::function<bool(const admin::WorkerDump&)>& holds) {
    const auto stop = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (true) {
      admin::WorkerDump now = dump();
      if (holds(now) || std::chrono::steady_clock::now() >= stop) return now;
    }
  }
  // Returns a dump taken when each command has been executed or is in the backlog.
  admin::WorkerDump settled_dump() {
    return await_dump([this](const admin::WorkerDump& dump) {
      return dump.received() + 1 == client->next_sequence && dump.executor().command().empty();
    });
  }
  void fill(uint64_t stream, uint64_t offset = 0) {
    client->call("cuMemsetD8Async", bytes_of(client->address(offset), uint8_t{1}, uint64_t{16}, stream));
  }
  void turn(quota::Arbiter::Turn::State state, uint32_t number) {
    (*page)->turns[0] = quota::TurnWord::of({.state = state, .bounded = true}, number).word;
    quota::wake_worker((*page)->bell);
  }

  uint64_t question = 0;
};

}  // namespace

TEST_CASE("a dump is answered while the executor is stuck in a driver call and names the call") {
  Dumped session;
  std::promise<void> back;
  session.client->fake.in_module_load = [come_back = back.get_future().share()] { come_back.wait(); };
  const std::string ptx = ".version 8.0\n.target sm_80\n.address_size 64\n";
  cuda::Bytes bundle;
  REQUIRE(cuda::bundle({std::as_bytes(std::span(ptx.c_str(), ptx.size() + 1)), {}}, bundle) == CUDA_SUCCESS);
  constexpr uint64_t kUpload = cuda::make_handle(cuda::Kind::upload, 1, 302);
  wire::Buffer part = bytes_of(wire::UploadPart{kUpload, bundle.view().size()});
  part.insert(part.end(), bundle.view().begin(), bundle.view().end());
  session.client->send(Command::upload_part, part);
  const uint64_t load = session.client->send(
      Command::load_module, bytes_of(wire::LoadImage{cuda::make_handle(cuda::Kind::module, 1, 301), kUpload}),
      true);

  const admin::WorkerDump stuck = session.await_dump(
      [](const auto& dump) { return dump.executor().driver_function() == "cuModuleLoadDataEx"; });
  CHECK(stuck.executor().command() == "load_module");
  CHECK(stuck.executor().driver_function() == "cuModuleLoadDataEx");
  CHECK(stuck.executor().waits_for().empty());
  CHECK(stuck.executor().context() == kContext);
  CHECK_FALSE(stuck.executor().has_stream());
  CHECK(stuck.received() == load);
  CHECK(stuck.executed() == load - 1);
  CHECK(session.await_dump([](const auto& dump) { return dump.executor().age_ms() >= 50; })
            .executor()
            .age_ms() >= 50);
  back.set_value();
  CHECK(session.client->result(load) == CUDA_SUCCESS);
  const admin::WorkerDump after = session.settled_dump();
  CHECK(after.executor().command().empty());
  CHECK(after.executed() == load);
}

TEST_CASE("a dump names the closed gates and what the backlog waits for") {
  Dumped session;
  session.client->call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
  session.client->send(Command::hold_stream, bytes_of(wire::HoldStream{kFirst, kHold}));
  session.fill(kFirst);
  session.client->record(0, kFirst);
  session.client->call("cuStreamWaitEvent", bytes_of(kSecond, event_handle(0), uint32_t{0}));
  session.client->send(Command::host_function, bytes_of(wire::HostFunction{uint64_t{0}, 5}));
  CHECK(session.client->receive().header.kind == wire::MessageKind::host_callback);

  const admin::WorkerDump dump = session.settled_dump();
  REQUIRE(dump.gates_size() == 2);
  CHECK(dump.closed_gates() == 2);
  CHECK(dump.gates(0).reason() == "another server");
  CHECK(dump.gates(0).stream() == kFirst);
  CHECK(dump.gates(0).context() == kContext);
  CHECK_FALSE(dump.gates(0).opened());
  CHECK(dump.gates(1).reason() == "a host function");
  CHECK(dump.gates(1).stream() == 0);
  REQUIRE(dump.kept_size() == 3);
  CHECK(dump.backlog() == 3);
  CHECK(dump.backlog_bytes() > 0);
  CHECK(dump.executed() + dump.backlog() == dump.received());
  CHECK(dump.kept(0).command() == "cuMemsetD8Async");
  CHECK(dump.kept(0).stream() == kFirst);
  CHECK(dump.kept(0).context() == kContext);
  CHECK(dump.kept(0).waits_for() == "its stream's gate");
  CHECK(dump.kept(1).command() == "cuEventRecord");
  CHECK(dump.kept(2).command() == "cuStreamWaitEvent");
  CHECK(dump.kept(2).stream() == kSecond);
  CHECK(dump.kept(2).waits_for() == "an earlier command that uses the same object");

  session.client->send(Command::resume_stream, bytes_of(wire::ResumeStream{kHold}));
  const admin::WorkerDump after =
      session.await_dump([](const auto& dump) { return dump.backlog() == 0 && dump.closed_gates() == 1; });
  CHECK(after.backlog_bytes() == 0);
  CHECK(after.kept_size() == 0);
  CHECK(after.gates(0).reason() == "a host function");
}

TEST_CASE("a dump names copies under way and what wait threads are in") {
  Dumped session;
  session.client->fake.hold(0);
  session.fill(kFirst);
  const uint64_t wait = session.client->send(Command::synchronize_stream, bytes_of(kFirst), true);
  session.client->send(Command::bulk_to_device,
                       bytes_of(wire::BulkCopy{kSecond, session.client->address(0), kPage, kPage, 1, 0, 0}));
  const admin::WorkerDump dump = session.await_dump([](const auto& dump) {
    return dump.copies_under_way() == 1 && dump.waits_size() == 1 &&
           dump.waits(0).driver_function() == "cuEventSynchronize";
  });
  REQUIRE(dump.waits_size() == 1);
  CHECK(dump.waits(0).purpose() == "a synchronize call");
  CHECK(dump.waits(0).stream() == kFirst);
  CHECK(dump.waits(0).driver_function() == "cuEventSynchronize");
  REQUIRE(dump.copies_size() == 1);
  CHECK(dump.copies(0).to_device());
  CHECK(dump.copies(0).done_bytes() == 0);
  CHECK(dump.copies(0).total_bytes() == kPage);
  REQUIRE(dump.gates_size() == 1);
  CHECK(dump.gates(0).reason() == "a copy to the device");
  CHECK(dump.gates(0).stream() == kSecond);
  CHECK(dump.executor().command().empty());
  session.client->fake.let_go(0);
  CHECK(session.client->result(wait) == CUDA_SUCCESS);
}

TEST_CASE("a dump distinguishes waiting for a turn from being inside the driver") {
  using State = quota::Arbiter::Turn::State;
  Dumped session;
  session.turn(State::closed, 1);
  session.fill(kSecond);
  const admin::WorkerDump dump = session.await_dump(
      [](const auto& dump) { return !dump.executor().waits_for().empty() && dump.executor().has_stream(); });
  CHECK(dump.executor().command() == "cuMemsetD8Async");
  CHECK(dump.executor().stream() == kSecond);
  CHECK(dump.executor().waits_for() == "its turn on the GPU");
  CHECK(dump.executor().driver_function().empty());
  session.turn(State::open, 2);
  CHECK(session.settled_dump().executor().command().empty());
}

TEST_CASE("a dump shows a deferred error until it is reported to the client") {
  Dumped session;
  session.client->call("cuMemsetD8Async", bytes_of(uint64_t{8}, uint8_t{1}, uint64_t{16}, kFirst));
  CHECK(session.settled_dump().deferred_error() == CUDA_ERROR_INVALID_VALUE);
  CHECK(session.client->ask(Command::synchronize_context, {}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(session.settled_dump().deferred_error() == CUDA_SUCCESS);
}

TEST_CASE("a dump lists the first of many, and counts all") {
  Dumped session;
  constexpr uint32_t kStreams = 3 * kMostListed;
  for (uint32_t i = 0; i < kStreams; ++i) {
    session.client->create_stream(10 + i);
    session.client->send(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(10 + i), 100 + i}));
    for (int j = 0; j < 10; ++j) session.fill(stream_handle(10 + i));
  }
  const admin::WorkerDump dump = session.settled_dump();
  CHECK(dump.closed_gates() == kStreams);
  CHECK(dump.gates_size() == kMostListed);
  CHECK(dump.backlog() == 10 * kStreams);
  CHECK(dump.kept_size() == kMostKeptListed);
  CHECK(dump.ByteSizeLong() < server::kMaxControlPayload / 4);
}
