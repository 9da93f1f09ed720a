// Tests sessions against a fake worker: the hello exchange with correct and wrong servers, the commands that
// calls send, what their replies do, and the end of a session.
#include "client/session/session.h"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "protocol/calls/errors.h"
#include "tests/client/fake_session.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using Catch::Matchers::ContainsSubstring;
using wire::Command;

namespace {

constexpr uint16_t kRow = 0x0102;  // any row of the call table

Error error_of_open(const FakeWorker& worker, Settings settings = test_settings()) {
  const auto opened = Session::open(settings, worker.endpoint());
  REQUIRE_FALSE(opened);
  return opened.error();
}

std::string preamble(uint32_t length, uint32_t magic = wire::kMagic) {
  return bytes_of(wire::Preamble{.magic = magic, .length = length});
}

CUresult call(Session& session, Context* context, const std::string& body, std::string* reply = nullptr) {
  wire::Buffer buffer;
  const CUresult result = session.call(
      kRow, context, [&](wire::Writer& writer) { writer.put_bytes(body.data(), body.size()); }, buffer);
  if (reply) reply->assign(reinterpret_cast<const char*>(buffer.data()), buffer.size());
  return result;
}

CUresult post(Session& session, Context* context, const std::string& body) {
  return session.post(kRow, context,
                      [&](wire::Writer& writer) { writer.put_bytes(body.data(), body.size()); });
}

}  // namespace

TEST_CASE("session: introduces itself and learns what the server offers") {
  FakeWorker worker;
  worker.offer.devices = {fake_device_description("first"), fake_device_description("second")};
  worker.offer.devices[0].memory_limited = true;
  worker.offer.driver_version = 12080;
  worker.offer.server_id = 77;
  worker.offer.image_nonce = std::string(sizeof(image::Nonce), 'n');
  worker.offer.largest_image = 1000;
  Settings settings = test_settings();
  settings.tenant = "alice";
  settings.token = "secret";
  settings.index = 3;
  const Session& session = open_session(worker, settings);
  CHECK(session.server() == worker.url());
  CHECK(session.index() == 3);
  REQUIRE(session.offered().size() == 2);
  CHECK(session.offered()[1].name == "second");
  CHECK(session.driver_version() == 12080);
  CHECK(session.server_id() == 77);
  CHECK(session.memory_limited());
  CHECK_FALSE(session.shares_memory());
  REQUIRE(session.image_nonce(1000));
  CHECK((*session.image_nonce(1000))[0] == static_cast<image::Nonce::value_type>('n'));
  CHECK_FALSE(session.image_nonce(1001));

  const auto hellos = worker.hellos();
  REQUIRE(hellos.size() == 1);
  CHECK(hellos[0].protocol_version == wire::kProtocolVersion);
  CHECK(hellos[0].cuda_version == CUDA_VERSION);
  CHECK(hellos[0].tenant == "alice");
  CHECK(hellos[0].token == "secret");
  CHECK(hellos[0].pid == ::getpid());
  CHECK(hellos[0].session_id.empty());
  CHECK_FALSE(hellos[0].program.empty());
}

TEST_CASE("session: ignores an image nonce of the wrong size") {
  FakeWorker worker;
  worker.offer.image_nonce = std::string(sizeof(image::Nonce) - 1, 'n');
  worker.offer.largest_image = 1000;
  CHECK_FALSE(open_session(worker).image_nonce(1));
}

TEST_CASE("session: reports why a server rejects it") {
  FakeWorker worker;
  worker.offer.status = hello::Status::denied;
  worker.offer.reason = "no such tenant";
  const Error error = error_of_open(worker);
  CHECK(error.code == ErrorCode::refused);
  CHECK(error.message == "refused: no such tenant");
}

TEST_CASE("session: rejects wrong answers to its hello") {
  FakeWorker worker;
  const std::string whole = hello::encode(worker.offer);
  Error error;
  SECTION("another service") {
    worker.raw_answer = preamble(4, 0x12345678) + "data";
    error = error_of_open(worker);
    CHECK(error.code == ErrorCode::malformed);
    CHECK_THAT(error.message, ContainsSubstring("not poold"));
  }
  SECTION("a scheduler") {
    worker.raw_answer = std::string("\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64", 15);
    error = error_of_open(worker);
    CHECK(error.code == ErrorCode::malformed);
    CHECK_THAT(error.message, ContainsSubstring("pool://HOST:PORT"));
  }
  SECTION("longer than the limit") {
    worker.raw_answer = preamble(wire::kMaxHelloBytes + 1);
    error = error_of_open(worker);
    CHECK(error.code == ErrorCode::malformed);
  }
  SECTION("truncated") {
    worker.raw_answer = preamble(static_cast<uint32_t>(whole.size())) + whole.substr(0, whole.size() / 2);
    error = error_of_open(worker);
    CHECK_THAT(error.message, ContainsSubstring("ended during the server's hello"));
  }
  SECTION("no hello") {
    worker.raw_answer = preamble(3) + "\xff\xff\xff";
    error = error_of_open(worker);
    CHECK(error.code == ErrorCode::malformed);
  }
  SECTION("another protocol version") {
    worker.raw_answer = bytes_of(wire::Preamble{.protocol_version = wire::kProtocolVersion + 1,
                                                .length = static_cast<uint32_t>(whole.size())}) +
                        whole;
    error = error_of_open(worker);
    CHECK(error.code == ErrorCode::refused);
    CHECK_THAT(error.message, ContainsSubstring("protocol version"));
  }
  CHECK_FALSE(error.message.empty());
}

TEST_CASE("session: rejects carriers that the address excludes before it connects") {
  Settings settings = test_settings();
  settings.carrier = Carrier::rdma;
  const auto opened = Session::open(settings, {"tls", "127.0.0.1", 1});
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == ErrorCode::invalid);
  CHECK_THAT(opened.error().message, ContainsSubstring("GPUPOOL_TRANSPORT=rdma"));
}

TEST_CASE("session: asks for other addresses if the offered ones are in use") {
  FakeWorker worker;
  Session& first = open_session(worker);
  REQUIRE(first.addresses().base() == worker.offer.addresses.base);
  SECTION("and takes what it is granted") {
    Session& second = open_session(worker);
    const auto asked = worker.await_command(Command::move_addresses).as<wire::MoveAddresses>();
    CHECK(asked.preferred_base == first.addresses().base() + first.addresses().size());
    CHECK(asked.size == first.addresses().size());
    CHECK(second.addresses().base() == asked.preferred_base);
  }
  SECTION("and fails if the server has none") {
    worker.answer(Command::move_addresses, "", CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_THROWS_WITH(open_session(worker), ContainsSubstring("no range of device addresses is free"));
  }
  SECTION("and fails if the reply is truncated") {
    worker.answer(Command::move_addresses, std::string(sizeof(wire::AddressRange) - 1, '\1'));
    CHECK_THROWS_WITH(open_session(worker), ContainsSubstring("no range of device addresses is free"));
  }
  SECTION("and gives up a server that grants only ranges in use") {
    worker.answer(Command::move_addresses,
                  bytes_of(wire::AddressRange{first.addresses().base(), first.addresses().size()}));
    CHECK_THROWS_WITH(open_session(worker), ContainsSubstring("no range of device addresses is free"));
    CHECK(worker.received(Command::move_addresses).size() == 16);
  }
}

TEST_CASE("session: sends queued commands before a call, in order and with their context") {
  FakeWorker worker;
  Session& session = open_session(worker);
  Context& context = make_context(session);
  worker.on(kRow, [&](const ReceivedCommand& command) {
    if (command.header.flags & wire::kWantsReply) worker.reply(command.header.sequence, "answer");
  });
  CHECK(post(session, &context, "queued") == CUDA_SUCCESS);
  std::string reply;
  CHECK(call(session, nullptr, "called", &reply) == CUDA_SUCCESS);
  CHECK(reply == "answer");
  const auto received = worker.received();
  REQUIRE(received.size() == 2);
  CHECK(received[0].body == "queued");
  CHECK(received[0].header.context == context.handle);
  CHECK(received[0].header.flags == 0);
  CHECK(received[1].body == "called");
  CHECK(received[1].header.context == 0);
  CHECK(received[1].header.flags == wire::kWantsReply);
  CHECK(received[1].header.sequence == received[0].header.sequence + 1);
}

TEST_CASE("session: GPUPOOL_SYNC makes every call wait for its result") {
  FakeWorker worker;
  Settings settings = test_settings();
  settings.every_call_waits = true;
  Session& session = open_session(worker, settings);
  Context& context = make_context(session);
  worker.answer(kRow, "", CUDA_ERROR_INVALID_VALUE);
  worker.answer(Command::free_memory, "", CUDA_ERROR_NOT_PERMITTED);
  CHECK(post(session, &context, "") == CUDA_ERROR_INVALID_VALUE);
  uint64_t number = 0;
  CHECK(session.post_known(Command::free_memory, context, wire::FreeMemory{},
                           [&](uint64_t sequence) { number = sequence; }) == CUDA_ERROR_NOT_PERMITTED);
  CHECK(number == worker.await_command(Command::free_memory).header.sequence);
}

TEST_CASE("session: passes the result of a later reply to its handler") {
  FakeWorker worker;
  Session& session = open_session(worker);
  Context& context = make_context(session);
  worker.ignore(kRow);
  std::atomic<int> result{-1};
  REQUIRE(session.call_later(
              Command::await_barriers, context, [](wire::Writer&) {}, [&](CUresult got) { result = got; }) ==
          CUDA_SUCCESS);
  CHECK(eventually([&] { return result == CUDA_SUCCESS; }));
}

TEST_CASE("session: a sticky error is returned by all later calls on its context") {
  FakeWorker worker;
  Session& session = open_session(worker);
  Context &broken = make_context(session), &other = make_context(session);
  worker.answer(kRow, "", CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(call(session, &broken, "") == CUDA_ERROR_ILLEGAL_ADDRESS);
  worker.answer(kRow, "");
  CHECK(call(session, &broken, "") == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(post(session, &broken, "") == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(worker.received().size() == 1);
  CHECK(call(session, &other, "") == CUDA_SUCCESS);
}

TEST_CASE("session: an ordinary error is returned once") {
  FakeWorker worker;
  Session& session = open_session(worker);
  Context& context = make_context(session);
  worker.answer(kRow, "", CUDA_ERROR_INVALID_VALUE);
  CHECK(call(session, &context, "") == CUDA_ERROR_INVALID_VALUE);
  worker.answer(kRow, "");
  CHECK(call(session, &context, "") == CUDA_SUCCESS);
}

TEST_CASE("session: returns the error of work between servers with the next awaited success") {
  FakeWorker worker;
  Session& session = open_session(worker);
  Context& context = make_context(session);
  context.late_error = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  worker.answer(kRow, "", CUDA_ERROR_INVALID_VALUE);
  CHECK(call(session, &context, "") == CUDA_ERROR_INVALID_VALUE);
  worker.answer(kRow, "");
  CHECK(call(session, &context, "") == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  CHECK(call(session, &context, "") == CUDA_SUCCESS);
}

TEST_CASE("session: rejects calls on contexts that are gone without asking the server") {
  FakeWorker worker;
  Session& session = open_session(worker);
  Context &context = make_context(session), &root = make_context(session);
  SECTION("released") {
    context.active = false;
  }
  SECTION("green, after a reset of the primary context") {
    context.root = &root;
    context.root_epoch = root.epoch.load();
    CHECK(call(session, &context, "") == CUDA_SUCCESS);
    ++root.epoch;
  }
  const size_t before = worker.received().size();
  CHECK(call(session, &context, "") == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(post(session, &context, "") == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(worker.received().size() == before);
}

TEST_CASE("session: creates a context on the server before its first command") {
  FakeWorker worker;
  worker.offer.devices[0].memory_limited = true;
  Session& session = open_session(worker);
  Context& context = make_context(session);
  context.on_server = false;
  context.device->server_ordinal = 5;
  SECTION("and only once") {
    CHECK(call(session, &context, "") == CUDA_SUCCESS);
    CHECK(call(session, &context, "") == CUDA_SUCCESS);
    const auto created = worker.received(Command::create_context);
    REQUIRE(created.size() == 1);
    CHECK(created[0].as<wire::CreateContext>().handle == context.handle);
    CHECK(created[0].as<wire::CreateContext>().device == 5);
    CHECK(created[0].header.context == 0);
  }
  SECTION("and fails if the quota has no room for it") {
    worker.answer(Command::create_context, "", CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(call(session, &context, "") == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_FALSE(context.on_server);
  }
  SECTION("and returns an earlier command's error with the first call") {
    worker.answer(Command::create_context, bytes_of(context.handle), CUDA_ERROR_INVALID_IMAGE);
    worker.send(wire::MessageKind::pong, 0, "", CUDA_SUCCESS, 0, wire::kMemoryLimited);
    CHECK(call(session, &context, "") == CUDA_ERROR_INVALID_IMAGE);
    CHECK(context.on_server);
    CHECK(call(session, &context, "") == CUDA_SUCCESS);
  }
}

TEST_CASE("session: matches replies that come in another order to their calls") {
  FakeWorker worker;
  Session& session = open_session(worker);
  std::vector<ReceivedCommand> waiting;
  worker.on(kRow, [&](const ReceivedCommand& command) {
    waiting.push_back(command);
    if (waiting.size() < 3) return;
    for (auto at = waiting.rbegin(); at != waiting.rend(); ++at) worker.reply(at->header.sequence, at->body);
  });
  std::string replies[3];
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] { (void)call(session, nullptr, std::to_string(i), &replies[i]); });
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < 3; ++i) CHECK(replies[i] == std::to_string(i));
}

TEST_CASE("session: fails for good when the server breaks the protocol or goes away") {
  FakeWorker worker;
  Session& session = open_session(worker);
  Context& context = make_context(session);
  static std::atomic<int> notified{0};
  notified = 0;
  session.on_host_callback([](Session&, uint64_t, uint64_t command, CUresult result) {
    if (command == 0 && result == Session::failure()) ++notified;
  });
  worker.on(kRow, [&](const ReceivedCommand&) {});
  SECTION("closes the connection") {
    worker.on(kRow, [&](const ReceivedCommand&) { worker.close(); });
  }
  SECTION("ends the session") {
    worker.on(kRow, [&](const ReceivedCommand&) { worker.send(wire::MessageKind::end, 0, "shutting down"); });
  }
  SECTION("ends in the middle of a message") {
    worker.on(kRow, [&](const ReceivedCommand& command) {
      const wire::MessageHeader header{.length = 100, .sequence = command.header.sequence};
      worker.send_bytes(bytes_of(header) + "only a part");
      worker.close();
    });
  }
  SECTION("sends a message above the limit") {
    worker.on(kRow, [&](const ReceivedCommand& command) {
      worker.send_bytes(bytes_of(wire::MessageHeader{.length = wire::kMaxBodyBytes + 1}));
      worker.reply(command.header.sequence);
    });
  }
  SECTION("sends a message of an unknown kind") {
    worker.on(kRow, [&](const ReceivedCommand& command) {
      worker.send(static_cast<wire::MessageKind>(99), command.header.sequence);
      worker.reply(command.header.sequence);
    });
  }
  CHECK(call(session, &context, "") == Session::failure());
  CHECK(session.failed());
  CHECK(eventually([&] { return notified == 1; }));
  CHECK(call(session, &context, "") == Session::failure());
  CHECK(post(session, nullptr, "") == Session::failure());
  worker.await_closed();
  CHECK(worker.received().size() == 1);
}

TEST_CASE("session: a failure ends the calls of all threads and pending handlers") {
  FakeWorker worker;
  Session& session = open_session(worker);
  Context& context = make_context(session);
  worker.ignore(kRow);
  worker.ignore(Command::await_barriers);
  std::atomic<int> later{-1}, ended{0};
  REQUIRE(session.call_later(
              Command::await_barriers, context, [](wire::Writer&) {},
              [&](CUresult result) { later = result; }) == CUDA_SUCCESS);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] { ended += call(session, &context, "") == Session::failure(); });
  (void)worker.await_command(kRow, 2);
  worker.close();
  for (auto& thread : threads) thread.join();
  CHECK(ended == 3);
  CHECK(eventually([&] { return later == Session::failure(); }));
}

TEST_CASE("session: gives up a server that answers neither calls nor pings") {
  FakeWorker worker;
  worker.ignore(kRow);
  worker.ignore(Command::ping);
  Settings settings = test_settings();
  settings.dead_peer_timeout = std::chrono::milliseconds(300);
  Session& session = open_session(worker, settings);
  CHECK(call(session, nullptr, "") == Session::failure());
  CHECK(worker.received(Command::ping).size() >= 2);
}

TEST_CASE("session: reuses addresses whose frees the server reports as done") {
  FakeWorker worker;
  Session& session = open_session(worker);
  AddressSpace& addresses = session.addresses();
  constexpr uint64_t kBytes = 32u << 20;
  const auto place = addresses.allocate(kBytes, 256, {});
  REQUIRE(place);
  addresses.mapped(*place);
  const auto release = addresses.release(place->address);
  REQUIRE(release);
  addresses.retire_after(*release, 7);
  REQUIRE(call(session, nullptr, "") == CUDA_SUCCESS);
  const auto second = addresses.allocate(kBytes, 256, {});
  REQUIRE(second);
  CHECK(second->address != place->address);
  worker.on(kRow, [&](const ReceivedCommand& command) {
    worker.send(wire::MessageKind::reply, command.header.sequence, "", CUDA_SUCCESS, 7);
  });
  REQUIRE(call(session, nullptr, "") == CUDA_SUCCESS);
  const auto third = addresses.allocate(kBytes, 256, {});
  REQUIRE(third);
  CHECK(third->address == place->address);
}

TEST_CASE("session: shares no host memory over a transport that cannot") {
  FakeWorker worker;
  Session& session = open_session(worker);
  Context& context = make_context(session);
  bool taken = true;
  uint64_t device = 0;
  CHECK(session.share_host_memory(context, STDIN_FILENO, {1, 4096, 0}, &taken, &device) ==
        CUDA_ERROR_NOT_SUPPORTED);
  CHECK_FALSE(taken);
  CHECK(worker.received().empty());
}

TEST_CASE("session: a forked child abandons its copy of the connection without ending the session") {
  FakeWorker worker;
  Session& session = open_session(worker);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    session.abandon();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(call(session, nullptr, "") == CUDA_SUCCESS);
}

TEST_CASE("session: handles that it mints name it") {
  FakeWorker worker;
  Session& session = open_session(worker);
  const uint64_t handle = session.mint(Kind::event, nullptr);
  REQUIRE(handle != 0);
  const Object* const object = handles().find(Kind::event, handle);
  REQUIRE(object);
  CHECK(object->session == &session);
  CHECK(object->handle == handle);
}
