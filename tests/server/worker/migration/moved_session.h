// A session that moves from one worker to another one, which is there after it, on the fake driver. On the
// test's thread.
#pragma once
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "protocol/wire/migration.h"
#include "server/worker/migration/command_stream.h"
#include "tests/server/worker/migrating_session.h"
#include "tests/server/worker/migration/played_source.h"
#include "tests/support/catch.h"
#include "tests/support/recording_connection.h"

namespace gpupool::worker::test {

inline transport::Clock::time_point soon() {
  return transport::Clock::now() + std::chrono::seconds(60);
}

// What a worker sends until the end of its session's migration.
inline std::string record(int socket) {
  auto connection = transport::adopt_stream(socket, "the source", transport::Options());
  if (!connection) return {};
  testing::RecordingConnection recorder;
  CommandSender sender(recorder, std::chrono::seconds(1));
  CommandReceiver in(**connection);
  while (const auto got = in.next(soon())) {
    if (!sender.send(got->header, got->body, {}, got->expected, got->checks)) break;
    if (got->header.id != static_cast<uint16_t>(wire::Command::end_migration)) continue;
    (void)send_answer(**connection, CUDA_SUCCESS, "", soon());
    return recorder.bytes;
  }
  return {};
}

// Suspends a session. Returns what poold would write to its file.
inline std::string suspend(const std::function<void(TestClient&)>& make) {
  MigratingSession session;
  TestClient& client = *session.client;
  make(client);
  int file[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, file) == 0);
  session.ask(1, "", file[1]);
  ::close(file[1]);
  session.client_hears(1, "");
  std::string stream;
  std::thread poold([&stream, socket = file[0]] { stream = record(socket); });
  wire::PeerTarget target{};
  target.copy = wire::kAdoptSequence;
  const Message begun =
      client.reply(client.send(wire::Command::begin_migration, bytes_of(wire::BeginMigration{target}), true));
  CHECK(begun.text() == "");
  CHECK(client.ask(wire::Command::migrate_session, bytes_of(wire::MigrateSession{5000, 0})) == CUDA_SUCCESS);
  poold.join();
  CHECK(client.fake.misused == 0);
  REQUIRE(!stream.empty());
  return stream;
}

// A session that adopts what another worker has sent.
struct Adopting {
  explicit Adopting(const std::string& stream, const std::function<void(FakeDriver&)>& prepare = {})
      : client(false, nullptr, 0, false, nullptr, false, {}, prepare, [&](SessionStart& start) {
          start.welcome_bulk = [](transport::Connection&, transport::Deadline, bool) {
            return Result<void>{};
          };
          start.bulk_connections = [this, &stream](const BulkSink& session) {
            if (session) session(std::make_unique<PlayedSource>(stream, answer), wire::kAdoptSequence, 0);
          };
        }) {
    const uint64_t asked = client.send(wire::Command::adopt_session, {}, true, 0);
    Message message = client.receive();
    while (message.header.kind != wire::MessageKind{0} &&
           (message.header.kind != wire::MessageKind::reply || message.header.sequence != asked))
      message = client.receive();
    adopted = message.header.kind == wire::MessageKind::reply && message.header.result == CUDA_SUCCESS;
    reason = adopted ? "" : message.text();
    if (adopted) client.next_sequence = message.as<wire::AdoptedSession>().sequence + 1;
  }
  // Ends the session, which must leave nothing.
  ~Adopting() {
    client.finish();
    CHECK((client.fake.arrays.empty() && client.fake.textures.empty() && client.fake.contexts.empty()));
    CHECK(client.fake.misused == 0);
  }
  std::string answer, reason;
  TestClient client;
  bool adopted = false;
};

}  // namespace gpupool::worker::test
