// Tests what a session answers when its server asks it to move to another one, with fake workers as both, and
// that a move counts for copies between servers. In child processes, because a process connects once.
#include "client/copies/server_copy.h"
#include "client/process/process.h"
#include "client/session/session.h"
#include "protocol/wire/migration.h"
#include "protocol/wire/reader.h"
#include "tests/client/child.h"
#include "tests/client/fake_session.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/fake_worker.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using wire::Command;

namespace {

constexpr uint16_t kRow = 0x0102;  // any row of the call table
constexpr uint64_t kWish = 7;

std::string text_body(const std::string& text) {
  return bytes_of(static_cast<uint32_t>(text.size())) + text;
}

// A server that sends to others and to which sessions can move.
std::unique_ptr<FakeWorker> make_server(const transport::TlsOptions& tls = {}) {
  auto server = std::make_unique<FakeWorker>(tls);
  server->offer.session_id = std::string(16, 'i');
  server->offer.bulk_token = std::string(32, 't');
  server->offer.resume_timeout_ms = 60'000;
  server->offer.peer_protocol = wire::kPeerProtocolVersion;
  return server;
}

std::unique_ptr<FakeWorker> make_server(const Authority& authority, bool encrypts_peers) {
  const auto files = authority.sign("server", "IP:127.0.0.1");
  auto server = make_server({.ca = {}, .certificate = files.certificate, .key = files.key, .secret = {}});
  server->offer.encrypts_peers = encrypts_peers;
  return server;
}

// Has the source hand its session over to the target when the client asks for it.
void let_move(FakeWorker& source, FakeWorker& target) {
  target.ignore(Command::adopt_session);
  source.on(Command::migrate_session, [&](const ReceivedCommand& command) {
    target.reply(wire::kAdoptSequence, bytes_of(wire::AdoptedSession{command.header.sequence}));
    source.reply(command.header.sequence);
  });
}

void send_wish(FakeWorker& worker, const std::string& address) {
  worker.send(wire::MessageKind::migration_wish, 0, bytes_of(wire::MigrationWish{kWish}) + address);
}

// Has the session of this process read a wish: a waiting call does. Returns false if the call fails.
bool read_wish() {
  wire::Buffer reply;
  return sessions()[0]->call(
             kRow, nullptr, [](wire::Writer&) {}, reply) == CUDA_SUCCESS;
}

// Returns the reason for which the session stays with the worker, or what else it has answered to the wish.
std::string reason_of_answer(FakeWorker& worker) {
  const ReceivedCommand answer = worker.await_command(Command::end_migration);
  const auto ended = answer.as<wire::EndMigration>();
  if (ended.number != kWish || ended.migrated != 0) return "another answer";
  wire::Reader reader(std::as_bytes(std::span(answer.body)).subspan(sizeof ended));
  return std::string(reader.get_text());
}

// Asks the session of this process to move to the other server. Returns the reason of its answer.
std::string reason_for_staying(FakeWorker& source, const std::string& address) {
  send_wish(source, address);
  return read_wish() ? reason_of_answer(source) : "the call failed";
}

struct Asked {
  std::string reason;  // without the target's address
  std::string errors;  // the client's stderr
};

// Asks a session whose server can encrypt for other servers, or not, to move to another server. Neither
// server moves anything: a source that is told to begin refuses. Checks that the target is given up.
Asked ask_to_move(const Authority& authority, bool source_encrypts, bool target_encrypts) {
  const Environment environment{
      {"GPUPOOL_TRANSPORT", "tcp"}, {"GPUPOOL_SHM", "0"}, {"GPUPOOL_TLS_CA", authority.certificate()}};
  const auto got = in_child(environment, [&]() -> std::string {
    FakeWorker& source = *make_server(authority, source_encrypts).release();  // sessions are never closed
    FakeWorker& target = *make_server(authority, target_encrypts).release();
    source.answer(Command::begin_migration, text_body("told to begin"), CUDA_ERROR_NOT_SUPPORTED);
    target.ignore(Command::adopt_session);
    ::setenv("GPUPOOL", source.url().c_str(), 1);
    if (initialise() != CUDA_SUCCESS) return "cannot connect";
    std::string reason = reason_for_staying(source, target.url());
    target.await_closed();
    const bool begun = !source.received(Command::begin_migration).empty();
    if (begun && source.await_command(Command::begin_migration).as<wire::BeginMigration>().target.tls != 1)
      return "told to begin in the clear";
    if (begun == target.received(Command::adopt_session).empty()) return "one of both was asked to move it";
    if (sessions()[0]->server() != source.url()) return "the session has moved";
    const std::string prefix = target.url() + ": ";
    return reason.starts_with(prefix) ? reason.substr(prefix.size()) : reason;
  });
  return {got.result, got.errors};
}

}  // namespace

TEST_CASE("session: moves between tls ports only if both servers can encrypt it, and says which cannot") {
  const Authority authority("authority");
  const auto expect = [&](bool source_encrypts, bool target_encrypts, const std::string& reason) {
    const Asked asked = ask_to_move(authority, source_encrypts, target_encrypts);
    INFO(asked.errors);
    CHECK(asked.reason == reason);
  };
  expect(true, true, "told to begin");
  expect(false, true, "the source's worker cannot encrypt the migration: it is of an older release");
  expect(true, false, "the target's worker cannot encrypt the migration: it is of an older release");
}

TEST_CASE("session: answers a request to migrate that comes while it is arriving") {
  const Environment environment{{"GPUPOOL_TRANSPORT", "tcp"}, {"GPUPOOL_SHM", "0"}};
  const auto got = in_child(environment, []() -> std::string {
    FakeWorker& source = *make_server().release();  // sessions are never closed
    FakeWorker& target = *make_server().release();
    target.ignore(Command::adopt_session);
    source.on(Command::migrate_session, [&](const ReceivedCommand& command) {
      send_wish(target, "tls://127.0.0.1:1");
      target.reply(wire::kAdoptSequence, bytes_of(wire::AdoptedSession{command.header.sequence}));
      source.reply(command.header.sequence);
    });
    ::setenv("GPUPOOL", source.url().c_str(), 1);
    if (initialise() != CUDA_SUCCESS) return "cannot connect";
    send_wish(source, target.url());
    if (!read_wish()) return "the call failed";
    if (source.await_command(Command::end_migration).as<wire::EndMigration>().migrated != 1)
      return "the session has not moved";
    return reason_of_answer(target);
  });
  INFO(got.errors);
  CHECK(got.result == "an unencrypted session moves to tcp:// addresses only");
}

TEST_CASE("session: is copied to directly again when it has moved from a server that was not reached") {
  const Environment environment{{"GPUPOOL_TRANSPORT", "tcp"}, {"GPUPOOL_SHM", "0"}};
  const auto got = in_child(environment, []() -> std::string {
    FakeWorker& source = *make_server().release();  // sessions are never closed
    FakeWorker& unreachable = *make_server().release();
    FakeWorker& reachable = *make_server().release();
    constexpr uint64_t kBytes = 100;
    source.on(Command::copy_from_device, [&](const ReceivedCommand& command) {
      source.send(wire::MessageKind::device_data, command.header.sequence,
                  bytes_of(wire::DeviceData{0}) + std::string(kBytes, 'x'));
      source.reply(command.header.sequence);
    });
    let_move(unreachable, reachable);
    ::setenv("GPUPOOL", (source.url() + "," + unreachable.url()).c_str(), 1);
    if (initialise() != CUDA_SUCCESS) return "cannot connect";
    Context &from = make_context(*sessions()[0]), &to = make_context(*sessions()[1]);
    const CopyBox box{{true, 0x10000, 0, 0, &from}, {true, 0x20000, 0, 0, &to}, kBytes, 1, 1};
    std::string ports;  // to which the source was asked to send after each copy
    const auto copy_with = [&](CUresult answer) {
      source.answer(Command::copy_to_peer, "", answer);
      if (copy_between_servers(from, nullptr, box, true) != CUDA_SUCCESS) ports += " failed";
      for (const auto& asked : source.received(Command::copy_to_peer)) {
        const uint16_t port = asked.as<wire::CopyToPeer>().target.port;
        ports += port == unreachable.endpoint().port ? " old" : " new";
      }
      ports += ";";
    };
    copy_with(CUDA_ERROR_NOT_SUPPORTED);
    copy_with(CUDA_SUCCESS);  // the source is not asked again
    const auto moved = sessions()[1]->migrate(reachable.url(), 0);
    if (!moved) return moved.error().message;
    copy_with(CUDA_SUCCESS);
    return ports;
  });
  INFO(got.errors);
  CHECK(got.result == " old; old; old new;");
}
