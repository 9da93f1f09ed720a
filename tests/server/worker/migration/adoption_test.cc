// A session that adopts another one, with a stream that is cut at every byte, altered at every byte, or sent
// twice: it is adopted as a whole or not at all, and nothing remains. Or it ends while it waits for the
// source.
#include "server/worker/migration/adoption.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "protocol/wire/copies.h"
#include "protocol/wire/migration.h"
#include "server/worker/migration/command_stream.h"
#include "tests/server/worker/migration/played_source.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"
#include "tests/support/piped_connection.h"
#include "tests/support/recording_connection.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;

namespace {

constexpr uint64_t kLast = 1000;  // number of the source's last command
constexpr uint32_t kDataBytes = 64;

// What a source sends of a session with a context, memory with data, a stream and an event.
std::string stream_of_session(uint64_t range_base) {
  testing::RecordingConnection recorder;
  CommandSender sender(recorder, std::chrono::seconds(1));
  const auto send = [&](uint16_t id, uint64_t context, const auto& body, std::string_view more = {}) {
    REQUIRE(sender.send({.id = id, .context = context}, std::as_bytes(std::span(&body, 1)),
                        std::as_bytes(std::span(more))));
  };
  const auto command = [](wire::Command id) { return static_cast<uint16_t>(id); };
  send(command(wire::Command::retain_primary_context), 0, wire::PrimaryContext{kContext, 0, 0});
  send(command(wire::Command::map_memory), kContext,
       wire::MapMemory{range_base, 4 * FakeDriver::kGranularity, 0, 0});
  const std::string data(kDataBytes, 'd');
  send(command(wire::Command::copy_to_device), kContext,
       wire::CopyToDevice{0, range_base, kDataBytes, kDataBytes, 1, 0, 0}, data);
  send(command(wire::Command::end_migration), 0, wire::EndMigration{0, kLast, 1, 0});
  return recorder.bytes;
}

struct Outcome {
  bool adopted = false;
  uint64_t last = 0;  // number of the source's last command
  Answer answer{};    // to the source
};

// Lets a session adopt what `make` returns for its range of addresses.
Outcome adopt(const std::function<std::string(uint64_t range_base)>& make) {
  std::string answer, stream;
  BulkSink sink;
  TestClient client(false, nullptr, 0, false, nullptr, false, {}, {}, [&](SessionStart& start) {
    stream = make(start.range_base);
    start.welcome_bulk = [](transport::Connection&, transport::Deadline, bool) { return Result<void>{}; };
    start.bulk_connections = [&](const BulkSink& session) {
      if (session) session(std::make_unique<PlayedSource>(stream, answer), wire::kAdoptSequence, 0);
    };
  });
  const uint64_t asked = client.send(wire::Command::adopt_session, {}, true, 0);
  Message message = client.receive();
  while (message.header.kind != wire::MessageKind{0} &&
         (message.header.kind != wire::MessageKind::reply || message.header.sequence != asked))
    message = client.receive();
  Outcome outcome;
  outcome.adopted = message.header.kind == wire::MessageKind::reply && message.header.result == CUDA_SUCCESS;
  if (outcome.adopted) {
    outcome.last = message.as<wire::AdoptedSession>().sequence;
    client.next_sequence = outcome.last + 1;
    const uint64_t ping = client.send(wire::Command::ping, {}, false, 0);
    for (message = client.receive(); message.header.kind != wire::MessageKind{0};) {
      if (message.header.kind == wire::MessageKind::pong && message.header.sequence == ping) break;
      message = client.receive();
    }
    CHECK(message.header.kind == wire::MessageKind::pong);
  }
  client.finish();
  const FakeDriver& fake = client.fake;
  CHECK((fake.contexts.empty() && fake.events.empty() && fake.pinned.empty() && fake.physical.empty()));
  CHECK(fake.misused == 0);
  fuzz::PlayedConnection played(std::as_bytes(std::span(answer)), true);
  const auto told = receive_answer(played, transport::Clock::now());
  REQUIRE(told);
  CHECK(played.rest().empty());
  outcome.answer = *told;
  return outcome;
}

size_t stream_bytes() {
  return stream_of_session(uint64_t{1} << 40).size();
}

}  // namespace

TEST_CASE("a whole stream is adopted") {
  const Outcome outcome = adopt(stream_of_session);
  CHECK(outcome.adopted);
  CHECK(outcome.last == kLast);
  CHECK(outcome.answer.result == CUDA_SUCCESS);
}

TEST_CASE("a stream that is cut at any byte is not adopted") {
  for (size_t kept = 0; kept < stream_bytes(); ++kept) {
    INFO("the first " << kept << " bytes");
    const Outcome outcome =
        adopt([&](uint64_t range_base) { return stream_of_session(range_base).substr(0, kept); });
    CHECK_FALSE(outcome.adopted);
    CHECK(outcome.answer.result != CUDA_SUCCESS);
    CHECK_FALSE(outcome.answer.reason.empty());
  }
}

TEST_CASE("a stream that is altered at any byte is adopted as a whole or not at all") {
  size_t refused = 0;
  for (size_t at = 0; at < stream_bytes(); ++at) {
    INFO("byte " << at);
    const Outcome outcome = adopt([&](uint64_t range_base) {
      std::string stream = stream_of_session(range_base);
      stream[at] = static_cast<char>(~stream[at]);
      return stream;
    });
    CHECK(outcome.adopted == (outcome.answer.result == CUDA_SUCCESS));
    refused += !outcome.adopted;
  }
  CHECK(refused > stream_bytes() / 4);
}

TEST_CASE("what follows the end of a stream is not executed") {
  const Outcome outcome = adopt(
      [](uint64_t range_base) { return stream_of_session(range_base) + stream_of_session(range_base); });
  CHECK(outcome.adopted);
}

// The device library keeps the places until the variables are loaded.
TEST_CASE("a client cannot name places of variables without an adoption") {
  wire::Buffer place = bytes_of(wire::PlaceVariable{1 << 20});
  wire::Writer(place).put_text("variable");
  {
    TestClient client;
    client.retain();
    CHECK(client.ask(wire::Command::place_variable, place) == CUDA_ERROR_ILLEGAL_STATE);
  }
  const Outcome outcome = adopt([&](uint64_t range_base) {
    testing::RecordingConnection recorder;
    CommandSender sender(recorder, std::chrono::seconds(1));
    const auto id = static_cast<uint16_t>(wire::Command::place_variable);
    REQUIRE(sender.send({.id = id, .context = 0}, place, {}));
    return recorder.bytes + stream_of_session(range_base);
  });
  CHECK(outcome.adopted);
}

TEST_CASE("the end of a session ends its adoption, which waits for a source or for its commands") {
  const bool has_source = GENERATE(false, true);
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  auto control = std::make_unique<Control>(ends[1], nullptr);
  {
    TestClient client(false, control.get(), 0, false, nullptr, false, {}, {}, [&](SessionStart& start) {
      start.welcome_bulk = [](transport::Connection&, transport::Deadline, bool) { return Result<void>{}; };
      start.bulk_connections = [has_source](const BulkSink& session) {
        if (!session || !has_source) return;
        auto silent = std::make_unique<testing::PipedConnection>(std::make_shared<testing::Pipe>());
        session(std::move(silent), wire::kAdoptSequence, 0);
      };
    });
    client.send(wire::Command::adopt_session, {}, true, 0);
    CHECK(client.receive().header.kind == wire::MessageKind::pong);  // the command takes long
    REQUIRE(server::send_control<server::ControlKind::end_session>(ends[0], {}, "enough"));
    CHECK(client.finish() == 1);
    CHECK(client.end_reason == "enough");
  }
  control.reset();
  for (const int end : ends) ::close(end);
}
