// Tests that an idle session's memory moves to host memory on poold's order and is back before anything can
// access it. The test acts as poold.
#include "server/quota/memory_moves.h"

#include <sys/socket.h>
#include <unistd.h>

#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "tests/server/worker/pooled_session.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using server::ControlKind;
using server::ControlMessage;
using server::packet::MemoryNeeded;
using wire::Command;

namespace {

struct Session : PooledSession {
  explicit Session(testing::FakeDirectMemory* direct = nullptr) : PooledSession(direct, direct == nullptr) {}

  void order(uint64_t bytes, uint64_t most, uint64_t keep, bool at_once) {
    say<ControlKind::move_out>({.bytes = bytes, .most = most, .keep = keep, .at_once = at_once});
  }
  // Returns the next message of this kind; skips turns and requests for memory.
  template <ControlKind kind>
  server::ControlBody<kind> told() {
    while (true) {
      const ControlMessage said = hear();
      if (said.kind == kind) return said.body<server::ControlBody<kind>>();
      REQUIRE((said.kind == ControlKind::turn || said.kind == ControlKind::memory_needed));
    }
  }
  uint64_t moved() { return told<ControlKind::moved_out>().bytes; }
  uint64_t move(uint64_t bytes, bool at_once = true) {
    order(bytes, UINT64_MAX, 0, at_once);
    return moved();
  }
  // Waits until the session has had no command for kIdleAfter.
  bool idles() {
    return testing::eventually([&] {
      const std::chrono::nanoseconds since((*page)->idle_since.load());
      return since.count() != 0 &&
             std::chrono::steady_clock::now().time_since_epoch() - since >= quota::kIdleAfter;
    });
  }
  // Waits until the session has executed all commands sent so far.
  void settle() {
    client->send(Command::ping, {});
    REQUIRE(client->receive().header.kind == wire::MessageKind::pong);
  }
};

wire::Buffer fill_body(Session& session, uint64_t stream, unsigned char value, uint64_t bytes = 16) {
  return bytes_of(session.client->address(0), value, bytes, stream);
}

}  // namespace

TEST_CASE("moves an idle session's memory out and back before the next command and keeps it charged") {
  Session session;
  CHECK(session.gpu().memory_movable == 4 * kPage);
  REQUIRE(session.idles());
  CHECK(session.move(2 * kPage, false) == 2 * kPage);
  CHECK(session.own() == 2 * kPage);
  CHECK(session.gpu().memory_in_host == 2 * kPage);
  CHECK(session.gpu().memory_movable == 2 * kPage);
  CHECK(session.charged() == 4 * kPage);
  CHECK(session.intact());
  CHECK(session.own() == 4 * kPage);
  CHECK(session.gpu().memory_in_host == 0);
  CHECK(session.charged() == 4 * kPage);
  CHECK((*session.page)->stays_until.load() > 0);
}

TEST_CASE("moves no more than ordered and keeps the session's minimum on the device") {
  Session session;
  session.order(4 * kPage, 3 * kPage, 0, true);
  CHECK(session.moved() == 3 * kPage);
  CHECK(session.intact());
  session.order(4 * kPage, UINT64_MAX, 2 * kPage + 1, true);
  CHECK(session.moved() == kPage);
  CHECK(session.intact());
  session.order(kPage + 1, UINT64_MAX, 0, true);
  CHECK(session.moved() == 2 * kPage);
  session.order(4 * kPage, UINT64_MAX, 2 * kPage, true);  // the minimum applies to what is still there
  CHECK(session.moved() == 0);
  CHECK(session.intact());
}

TEST_CASE("moves all memory back before any command that may access it") {
  Session session;
  const auto comes_back = [&](const std::function<void()>& act) {
    REQUIRE(session.move(4 * kPage) == 4 * kPage);
    REQUIRE(session.own() == 0);
    act();
    CHECK(session.own() >= 4 * kPage);
    CHECK(session.gpu().memory_in_host == 0);
  };
  TestClient& client = *session.client;
  comes_back([&] {
    CHECK(client.ask("cuMemsetD8Async",
                     fill_body(session, stream_handle(0),
                               std::to_integer<unsigned char>(session.content(0)[0]), 1)) == CUDA_SUCCESS);
  });
  comes_back([&] {
    CHECK(client.result(client.copy_in(stream_handle(0), kPage, session.content(1), true)) == CUDA_SUCCESS);
  });
  comes_back(
      [&] { CHECK(client.data(client.copy_out(stream_handle(0), 2 * kPage, kPage)) == session.content(2)); });
  comes_back([&] {
    CHECK(client.ask(Command::synchronize_stream, bytes_of(wire::SynchronizeStream{stream_handle(0)})) ==
          CUDA_SUCCESS);
  });
  comes_back([&] {
    client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2})), client.record(0, stream_handle(0)),
        client.ask(Command::synchronize_context, {});
  });
  comes_back([&] { client.create_stream(2), client.ask(Command::synchronize_context, {}); });
  comes_back([&] {
    CHECK(client.ask(Command::map_memory,
                     bytes_of(wire::MapMemory{client.address(9 * kPage), kPage, 0, 0})) == CUDA_SUCCESS);
  });
  CHECK(session.intact());
}

TEST_CASE("frees memory that is in host memory and its quota") {
  Session session;
  REQUIRE(session.move(4 * kPage) == 4 * kPage);
  session.client->send(Command::free_memory,
                       bytes_of(wire::FreeMemory{session.client->address(0), 3 * kPage, wire::kAllStreams}));
  CHECK(testing::eventually([&] { return session.charged() == kPage; }));
  CHECK(session.gpu().memory_in_host == kPage);
  CHECK(session.own() == 0);
  CHECK(session.client->data(session.client->copy_out(stream_handle(0), 3 * kPage, kPage)) ==
        session.content(3));
}

TEST_CASE("moves a session's memory only after its device work is done") {
  Session session;
  TestClient& client = *session.client;
  client.fake.hold(0);
  client.call("cuMemsetD8Async", fill_body(session, stream_handle(0), 7));
  session.settle();
  REQUIRE(session.idles());  // only the work on the device prevents the move
  session.order(4 * kPage, UINT64_MAX, 0, false);
  CHECK(session.moved() == 0);
  session.order(4 * kPage, UINT64_MAX, 0, true);
  CHECK(session.silent());
  CHECK(session.own() == 4 * kPage);
  client.fake.let_go(0);
  CHECK(session.moved() == 4 * kPage);
}

TEST_CASE("moves a recently active session only on an urgent order") {
  Session session;
  const uint64_t stop = session.client->next_sequence + 20;
  while (session.client->next_sequence < stop) session.client->ask(Command::synchronize_context, {});
  CHECK(session.move(kPage, false) == 0);
  CHECK(session.move(kPage, true) == kPage);
}

TEST_CASE("streams that wait for the client and work of destroyed streams count as work") {
  Session session;
  TestClient& client = *session.client;
  SECTION("a host function") {
    client.send(Command::host_function, bytes_of(wire::HostFunction{stream_handle(0), 5}));
    REQUIRE(client.receive().header.kind == wire::MessageKind::host_callback);
    session.order(4 * kPage, UINT64_MAX, 0, true);
    CHECK(session.silent());
    client.send(Command::host_function_done, bytes_of(wire::HostFunctionDone{5, 0}));
    CHECK(session.moved() == 4 * kPage);
  }
  SECTION("a held stream") {
    client.send(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(0), 5}));
    session.settle();
    session.order(4 * kPage, UINT64_MAX, 0, true);
    CHECK(session.silent());
    client.send(Command::resume_stream, bytes_of(wire::ResumeStream{5}));
    CHECK(session.moved() == 4 * kPage);
  }
  SECTION("a destroyed stream") {
    client.fake.hold(0);
    client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
    client.record(0, stream_handle(0));
    client.call("cuStreamWaitEvent", bytes_of(stream_handle(1), event_handle(0), 0u));
    client.call("cuMemsetD8Async", fill_body(session, stream_handle(1), 7));
    client.call("cuStreamDestroy_v2", bytes_of(stream_handle(1)));
    session.settle();
    client.fake.let_go(0);
    REQUIRE(session.idles());
    CHECK(session.move(4 * kPage, false) == 0);
  }
}

TEST_CASE("follows an urgent order between two commands of a busy session") {
  Session session;
  TestClient& client = *session.client;
  client.fake.hold(0);
  client.call("cuMemsetD8Async", fill_body(session, stream_handle(0), 7));
  session.settle();
  session.order(4 * kPage, UINT64_MAX, 0, true);
  CHECK(session.silent());
  const uint64_t next = client.call("cuMemsetD8Async", fill_body(session, stream_handle(0), 8), true);
  CHECK(client.silent());  // delayed until the device work is done
  client.fake.let_go(0);
  CHECK(session.moved() == 4 * kPage);
  CHECK(client.result(next) == CUDA_SUCCESS);
  CHECK(session.own() == 4 * kPage);
}

TEST_CASE("endless work delays commands only for a limited time") {
  Session session;
  TestClient& client = *session.client;
  client.fake.hold(0);
  client.call("cuMemsetD8Async", fill_body(session, stream_handle(0), 7));
  session.settle();
  session.order(4 * kPage, UINT64_MAX, 0, true);
  CHECK(session.silent());
  CHECK(client.ask("cuMemsetD8Async", fill_body(session, stream_handle(1), 8)) == CUDA_SUCCESS);
  CHECK(session.moved() == 0);
  client.fake.let_go(0);
}

TEST_CASE("waits for free memory to move back and keeps asking poold and executes other commands") {
  Session session;
  TestClient& client = *session.client;
  REQUIRE(session.move(4 * kPage) == 4 * kPage);
  session.leave_free(2 * kPage);
  const uint64_t copy = client.copy_out(stream_handle(0), 3 * kPage, kPage);
  const MemoryNeeded wanted = session.told<ControlKind::memory_needed>();
  CHECK(wanted.restores == 1);
  CHECK(session.told<ControlKind::memory_needed>().bytes == 2 * kPage);
  CHECK(client.silent());
  // Restoring only part of the memory does not help.
  session.order(kPage, UINT64_MAX, 0, true);
  CHECK(session.moved() == kPage);
  CHECK(client.silent());
  session.others_go();
  CHECK(client.data(copy) == session.content(3));
  CHECK(session.intact());
}

TEST_CASE("an allocation on a full device waits for memory unless it cannot succeed") {
  Session session;
  TestClient& client = *session.client;
  session.leave_free(0);
  const auto map = [&] {
    return client.send(Command::map_memory,
                       bytes_of(wire::MapMemory{client.address(20 * kPage), kPage, 0, 0}), true);
  };
  const auto start = std::chrono::steady_clock::now();
  const uint64_t refused = map();
  const uint64_t question = session.told<ControlKind::memory_needed>().question;
  CHECK(question != 0);
  session.say<ControlKind::room_patience>({.question = question});
  CHECK(client.result(refused) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  CHECK(session.charged() == 4 * kPage);
  const uint64_t granted = map();
  const MemoryNeeded wanted = session.told<ControlKind::memory_needed>();
  CHECK(wanted.restores == 0);
  CHECK(wanted.bytes == kPage);
  session.others_go();
  CHECK(client.result(granted) == CUDA_SUCCESS);
}

TEST_CASE("unregisters moved memory from direct copies and registers it again on use") {
  testing::FakeDirectMemory direct;
  {
    Session session(&direct);
    TestClient& client = *session.client;
    std::vector<std::byte> memory(kPage);
    const auto region = *direct.add(memory.data(), memory.size(), transport::DirectMemory::Access::remote);
    const auto down = [&](uint64_t i) {
      client.reply(client.send(
          Command::direct_from_device,
          bytes_of(wire::DirectCopy{{stream_handle(0), client.address(i * kPage), kPage, kPage, 1, 0, 0},
                                    reinterpret_cast<uint64_t>(memory.data()),
                                    region.remote_key,
                                    0})));
      return memory == session.content(i);
    };
    CHECK(down(1));
    const size_t before = direct.regions() - 1;
    REQUIRE(session.move(4 * kPage) == 4 * kPage);
    CHECK(direct.regions() == before);
    CHECK(down(1));
    CHECK(down(2));
    CHECK(direct.regions() == before + 2);
  }
  CHECK(direct.regions() == 1);
  CHECK_FALSE(direct.misused());
}

TEST_CASE("releases everything when a client leaves while its memory is moved") {
  Session session;
  REQUIRE(session.move(4 * kPage) == 4 * kPage);
  SECTION("away") {
    session.client->hang_up();
    CHECK(session.client->finish() == 0);
  }
  SECTION("on its way back") {
    session.leave_free(kPage);
    session.client->call("cuMemsetD8Async", fill_body(session, stream_handle(0), 7));
    session.told<ControlKind::memory_needed>();
    session.client->hang_up();
    session.others_go();
    CHECK(session.client->finish() == 0);
  }
  CHECK(session.own() == 0);
  CHECK(session.charged() == 0);
  CHECK(session.gpu().memory_in_host == 0);
}
