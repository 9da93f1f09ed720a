// Fuzzes a session that adopts another one (docs/adr/0037-migration.md) with everything that the other
// server's worker may send on the connection with the adoption's key. The input is a sequence of records {u16
// id, u8 flags, u16 length, body}, mostly commands, as in fuzz_commands.
//
// The other worker must get one valid answer. A session that was adopted must execute its client's next
// command, any other must end, and both must free everything.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "protocol/wire/migration.h"
#include "server/worker/migration/adoption.h"
#include "server/worker/migration/command_stream.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/played_connection.h"
#include "tests/fuzz/require.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/recording_connection.h"

using namespace gpupool;
using fuzz::require;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using testing::RecordingConnection;

namespace {

// Flags of records.
constexpr uint8_t kChecks = 1;        // the reply must be the text behind the body
constexpr uint8_t kRaw = 2;           // the body alone
constexpr uint8_t kNoContext = 4;     // the command names no context
constexpr uint8_t kEnds = 8;          // the end of the migration, with `id` as the last command's number
constexpr uint8_t kNotPrepared = 16;  // in the first record: without the objects that commands expect
constexpr uint8_t kEndless = 32;      // in the last record: the connection closes without the end

// Takes one byte, and then answers or not.
class SlowTarget final : public RecordingConnection {
 public:
  explicit SlowTarget(bool answers) : answers_(answers) {}
  Result<size_t> send_some(std::span<const iovec>) override { return std::exchange(taken_, 0); }
  Result<Ready> wait(bool, bool, transport::Deadline) override {
    return answers_ ? Ready::receive : Ready::none;
  }

 private:
  const bool answers_;
  size_t taken_ = 1;
};

// The bytes that the other worker sends.
class Stream {
 public:
  Stream(fuzz::Input input, uint64_t range_base) : input_(input) {
    bool first = true;
    uint8_t flags = 0;
    for (int records = 0; !input_.empty() && records < 200; ++records, first = false) {
      const auto id = input_.get<uint16_t>();
      flags = input_.get<uint8_t>();
      if (first && (flags & kNotPrepared) == 0) prepare(range_base);
      add(id, flags, input_.long_text());
    }
    if ((flags & kEndless) == 0) end(kLast);
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(recorder_.bytes)); }

 private:
  static constexpr uint64_t kLast = 1000;

  void prepare(uint64_t range_base) {
    send(static_cast<uint16_t>(wire::Command::retain_primary_context), 0,
         bytes_of(wire::PrimaryContext{kContext, 0, 0}));
    send(static_cast<uint16_t>(wire::Command::map_memory), kContext,
         bytes_of(wire::MapMemory{range_base, 4 * FakeDriver::kGranularity, 0, 0}));
  }
  void add(uint16_t id, uint8_t flags, const std::string& text) {
    const auto body = std::as_bytes(std::span(text));
    if ((flags & kRaw) != 0) {
      recorder_.bytes += text;
      return;
    }
    if ((flags & kEnds) != 0) return end(id);
    const bool checks = (flags & kChecks) != 0;
    const std::string expected = checks ? input_.text() : "";
    require(sender_
                .send({.id = id, .context = (flags & kNoContext) != 0 ? 0 : kContext}, body, {},
                      std::as_bytes(std::span(expected)), checks)
                .ok());
  }
  void end(uint64_t sequence) {
    send(static_cast<uint16_t>(wire::Command::end_migration), 0,
         bytes_of(wire::EndMigration{0, sequence, 1, 0}));
  }
  void send(uint16_t id, uint64_t context, std::span<const std::byte> body) {
    require(sender_.send({.id = id, .context = context}, body).ok());
  }

  fuzz::Input input_;
  RecordingConnection recorder_;
  CommandSender sender_{recorder_, std::chrono::seconds(1)};
};

// Plays the stream, and keeps the answer.
class Source final : public transport::Connection {
 public:
  Source(std::span<const std::byte> stream, std::string& answer) : played_(stream, true), answer_(answer) {}
  Result<size_t> send_some(std::span<const iovec> buffers) override {
    for (const iovec& buffer : buffers)
      answer_.append(static_cast<const char*>(buffer.iov_base), buffer.iov_len);
    return played_.send_some(buffers);
  }
  Result<size_t> receive_some(std::span<std::byte> buffer) override { return played_.receive_some(buffer); }
  Result<Ready> wait(bool receive, bool send, transport::Deadline deadline) override {
    return played_.wait(receive, send, deadline);
  }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "the fuzzer"; }
  int release_descriptor() override { return -1; }

 private:
  fuzz::PlayedConnection played_;
  std::string& answer_;
};

void check_everything_freed(TestClient& client) {
  FakeDriver& fake = client.fake;
  require(fake.contexts.empty() && fake.events.empty() && fake.pinned.empty() && fake.physical.empty());
  require(fake.graphs.empty() && fake.executables.empty() && fake.arrays.empty() && fake.textures.empty());
  require(fake.misused == 0);
}

// As the source's worker reads it.
Answer read_answer(const std::string& bytes) {
  fuzz::PlayedConnection played(std::as_bytes(std::span(bytes)), true);
  auto answer = receive_answer(played, transport::Clock::now());
  require(answer.ok() && played.rest().empty());
  return std::move(*answer);
}

// A target that answers early or does not read.
void send_to_slow_target() {
  for (const bool answers : {false, true}) {
    SlowTarget target(answers);
    CommandSender sender(target, std::chrono::seconds(1));
    require(!sender.send({.id = 1}, {}).ok() && sender.answered() == answers && sender.sent() == 1);
  }
}

// The answer of a hostile target.
void read_false_answer(const uint8_t* data, size_t size) {
  fuzz::PlayedConnection played({reinterpret_cast<const std::byte*>(data), size}, true);
  if (const auto answer = receive_answer(played, transport::Clock::now()); !answer)
    require(!answer.error().message.empty());
}

// Returns the message of this kind, or that of kind 0 at the end of the session.
Message await(TestClient& client, wire::MessageKind kind, uint64_t sequence) {
  Message message = client.receive();
  while (message.header.kind != wire::MessageKind{0} &&
         (message.header.kind != kind || message.header.sequence != sequence))
    message = client.receive();
  return message;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) send_to_slow_target();
  read_false_answer(data, size);
  std::string answer;
  BulkSink sink;
  std::unique_ptr<Stream> stream;
  TestClient client(false, nullptr, 0, false, nullptr, false, {}, {}, [&](SessionStart& start) {
    stream = std::make_unique<Stream>(fuzz::Input(data, size), start.range_base);
    start.welcome_bulk = [](transport::Connection&, transport::Deadline, bool) { return Result<void>{}; };
    start.bulk_connections = [&](const BulkSink& session) {
      if (session) session(std::make_unique<Source>(stream->bytes(), answer), wire::kAdoptSequence, 0);
    };
  });
  const Message adopted =
      await(client, wire::MessageKind::reply, client.send(wire::Command::adopt_session, {}, true, 0));
  if (adopted.header.kind == wire::MessageKind::reply && adopted.header.result == CUDA_SUCCESS) {
    require(read_answer(answer).result == CUDA_SUCCESS);
    client.next_sequence = adopted.as<wire::AdoptedSession>().sequence + 1;
    const uint64_t ping = client.send(wire::Command::ping, {}, false, 0);
    require(await(client, wire::MessageKind::pong, ping).header.kind == wire::MessageKind::pong);
  }
  client.finish();
  static_cast<void>(read_answer(answer));
  check_everything_freed(client);
  return 0;
}
