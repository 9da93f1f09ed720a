// Speaks the protocol of bulk connections by hand: authentication, and clients that violate the protocol,
// stop in the middle or do not read. None of these may affect other sessions.
#include <algorithm>
#include <span>

#include "protocol/calls/handles.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;
using wire::Command;

namespace {

constexpr uint64_t kContext = cuda::make_handle(cuda::Kind::context, 1, 1);
constexpr uint64_t kPiece = wire::kBulkChunkBytes;
constexpr uint64_t kSize = 4 * kPiece;

// A session with a primary context and kSize bytes of device memory.
struct Session {
  explicit Session(Pool& pool) : client(pool.poold().endpoint()), endpoint(pool.poold().endpoint()) {
    reply = client.open();
    send(Command::retain_primary_context, wire::PrimaryContext{kContext, 0, 0}, 0, 0);
    send(Command::map_memory, wire::MapMemory{memory(), kSize, 0, 0});
  }
  uint64_t memory() const { return reply.addresses.base; }

  template <class Body>
  uint64_t send(Command command, const Body& body, uint16_t flags = 0, uint64_t context = kContext) {
    return client.send_command(command, RawClient::bytes_of(body), context, flags);
  }
  template <class Body>
  int32_t ask(Command command, const Body& body) {
    return client.receive_reply_to(send(command, body, wire::kWantsReply)).header.result;
  }
  uint64_t announce(uint64_t bytes = kSize, uint64_t stream = 0) {
    return send(Command::bulk_to_device, wire::BulkCopy{stream, memory(), bytes, bytes, 1, 0, 0});
  }
  hello::Hello credentials() const {
    hello::Hello hello;
    hello.protocol_version = wire::kProtocolVersion;
    hello.session_id = reply.session_id;
    hello.bulk_token = reply.bulk_token;
    return hello;
  }

  RawClient client;
  transport::Endpoint endpoint;
  hello::HelloReply reply;
};

struct Link : RawClient {
  explicit Link(const Session& session) : RawClient(session.endpoint) { open(session.credentials()); }
  void send_header(uint64_t copy, uint64_t offset, uint32_t length, uint16_t flags = 0) {
    wire::BulkHeader header;
    header.copy = copy;
    header.offset = offset;
    header.length = length;
    header.flags = flags;
    send(bytes_of(header));
  }
  void send_piece(uint64_t copy, uint64_t offset, const std::string& bytes) {
    send_header(copy, offset, static_cast<uint32_t>(bytes.size()));
    send(bytes);
  }
};

std::string piece(char fill) {
  return std::string(kPiece, fill);
}

}  // namespace

TEST_CASE("a bulk connection without the session's token is refused") {
  Pool pool;
  Session session(pool);
  CHECK(session.reply.bulk_connections == wire::kMaxBulkConnections);
  CHECK(session.reply.bulk_token.size() == 32);
  auto wrong_token = session.credentials();
  wrong_token.bulk_token.back() = static_cast<char>(wrong_token.bulk_token.back() ^ 1);
  auto short_token = session.credentials();
  short_token.bulk_token.resize(31);
  auto other_session = session.credentials();
  other_session.session_id.assign(16, 'x');
  auto no_session = session.credentials();
  no_session.session_id.clear();
  for (const auto& hello : {wrong_token, short_token, other_session, no_session}) {
    RawClient stranger(session.endpoint);
    stranger.send_hello(hello);
    CHECK(stranger.receive_reply().status == hello::Status::denied);
    CHECK(stranger.await_end());
  }
  session.client.ping();  // the session is unaffected
}

TEST_CASE("pieces may come on any connection and in any order") {
  Pool pool;
  Session session(pool);
  Link first(session), second(session);
  const uint64_t copy = session.announce();
  second.send_piece(copy, 3 * kPiece, piece('d'));
  first.send_piece(copy, kPiece, piece('b'));
  second.send_piece(copy, 0, piece('a'));
  // The stream must not pass the copy while a piece is missing.
  const uint64_t wait =
      session.send(Command::synchronize_stream, wire::SynchronizeStream{0}, wire::kWantsReply);
  session.client.ping();
  first.send_piece(copy, 2 * kPiece, piece('c'));
  CHECK(session.client.receive_reply_to(wait).header.result == CUDA_SUCCESS);
  session.send(Command::copy_from_device, wire::CopyFromDevice{0, session.memory(), kSize, kSize, 1},
               wire::kWantsReply);
  std::string back;
  while (back.size() < kSize) {
    const Message message = session.client.receive_message();
    if (message.header.kind == wire::MessageKind::device_data)
      back += message.body.substr(sizeof(wire::DeviceData));
  }
  CHECK((back == piece('a') + piece('b') + piece('c') + piece('d')));
}

TEST_CASE("pieces that break the rules end their session with the reason") {
  Pool pool;
  const auto ends = [&](const char* reason, auto&& misbehave) {
    INFO(reason);
    Session session(pool);
    Link link(session);
    misbehave(session, link);
    const auto end = session.client.await_end();
    REQUIRE(end);
    CHECK(end->find(reason) != std::string::npos);
  };
  ends("a piece of an unknown copy", [](Session& session, Link& link) {
    const uint64_t before = session.client.send_command(Command::ping);
    session.announce();
    link.send_header(before, 0, kPiece);
  });
  ends("sent twice", [](Session& session, Link& link) {
    const uint64_t copy = session.announce();
    link.send_piece(copy, kPiece, piece('x'));
    link.send_header(copy, kPiece, kPiece);
  });
  ends("invalid offset or length",
       [](Session& session, Link& link) { link.send_header(session.announce(), 5, kPiece); });
  ends("invalid offset or length",
       [](Session& session, Link& link) { link.send_header(session.announce(), kSize, kPiece); });
  ends("invalid offset or length", [](Session& session, Link& link) {
    link.send_header(session.announce(), ~uint64_t{0} << 20, kPiece);
  });
  ends("invalid offset or length",
       [](Session& session, Link& link) { link.send_header(session.announce(), 0, kPiece - 1); });
  ends("invalid header",
       [](Session& session, Link& link) { link.send_header(session.announce(), 0, kPiece + 1); });
  ends("invalid header", [](Session& session, Link& link) { link.send_header(session.announce(), 0, 0); });
  ends("invalid header",
       [](Session& session, Link& link) { link.send_header(session.announce(), 0, kPiece, 0x8000); });
  ends("does not decompress", [](Session& session, Link& link) {
    link.send_header(session.announce(), 0, 100, wire::kBulkCompressed);
    link.send(std::string(100, 'j'));
  });
  ends("invalid offset or length", [](Session& session, Link& link) {  // no smaller than its piece
    link.send_header(session.announce(), 0, kPiece, wire::kBulkCompressed);
  });
  ends("invalid offset or length", [](Session& session, Link& link) {
    link.send_header(session.announce(kPiece + 10), kPiece, 10, wire::kBulkCompressed);
  });
  ends("closed the connection in the middle", [](Session& session, Link& link) {
    link.send_header(session.announce(), 0, kPiece);
    link.send("the first bytes");
    link.close();
  });
  Session afterwards(pool);
  afterwards.client.ping();
}

TEST_CASE("bulk commands with impossible sizes end their session") {
  Pool pool;
  for (const wire::BulkCopy& body :
       {wire::BulkCopy{0, 0, 0, 0, 1, 0, 0}, wire::BulkCopy{0, 0, 1, 1, 0, 0, 0},
        wire::BulkCopy{0, 0, 1, wire::kMaxBulkCopyBytes + 1, 1, 0, 0},
        wire::BulkCopy{0, 0, 8, 8, ~0ull / 4, 0, 0}, wire::BulkCopy{0, 0, 2 * kPiece, 2 * kPiece, 2, 0, 0},
        wire::BulkCopy{0, 0, 1, 1, 1, 0x80, 0}}) {
    for (const Command command : {Command::bulk_to_device, Command::bulk_from_device}) {
      Session session(pool);
      session.send(command, body);
      const auto end = session.client.await_end();
      REQUIRE(end);
      CHECK(end->find("malformed") != std::string::npos);
    }
  }
}

TEST_CASE("copies that cannot be made take their data and their error comes with the next answer") {
  Pool pool;
  Session session(pool);
  Link link(session);
  const auto refused = [&](const wire::BulkCopy& body, uint64_t context, int32_t result) {
    const uint64_t copy = session.send(Command::bulk_to_device, body, 0, context);
    const uint64_t total = body.width * body.rows, piece = wire::bulk_piece_bytes(body.width, body.rows);
    for (uint64_t at = 0; at < total; at += piece)
      link.send_piece(copy, at, std::string(std::min(piece, total - at), 'x'));
    CHECK(session.ask(Command::synchronize_stream, wire::SynchronizeStream{0}) == result);
    CHECK(session.ask(Command::synchronize_stream, wire::SynchronizeStream{0}) == CUDA_SUCCESS);
  };
  const uint64_t memory = session.memory();
  refused({0, 4096, kSize, kSize, 1, 0, 0}, kContext, CUDA_ERROR_INVALID_VALUE);  // not mapped
  refused({0, memory, ~0ull / 2, 1000, 1000, 0, 0}, kContext,
          CUDA_ERROR_INVALID_VALUE);  // the last row would end beyond 2^64
  refused({0x123450, memory, kSize, kSize, 1, 0, 0}, kContext, CUDA_ERROR_INVALID_HANDLE);  // no stream
  refused({0, memory, kSize, kSize, 1, 0, 0}, kContext + 16, CUDA_ERROR_INVALID_CONTEXT);   // no context
  const wire::BulkCopy outside{0, 4096, kSize, kSize, 1, 0, 0};
  CHECK(session.ask(Command::bulk_from_device, outside) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a copy whose data does not come holds up its stream alone") {
  Pool pool;
  Session session(pool);
  Link link(session);
  const uint64_t stream = cuda::make_handle(cuda::Kind::stream, 1, 50),
                 other = cuda::make_handle(cuda::Kind::stream, 1, 51);
  for (const uint64_t handle : {stream, other}) {
    // cuStreamCreateWithPriority (a row of the call table): the new stream's handle, its flags, its priority.
    struct {
      uint64_t handle;
      uint32_t flags = CU_STREAM_NON_BLOCKING;
      int32_t priority = 0;
    } const body{handle};
    session.client.send_command(0x0300, RawClient::bytes_of(body), kContext, 0);
  }
  const uint64_t copy = session.announce(kSize, stream);
  link.send_header(copy, 0, kPiece);
  link.send("a beginning");
  const wire::CopyFromDevice read{other, session.memory() + kPiece, 4, 4, 1};
  CHECK(session.ask(Command::copy_from_device, read) == CUDA_SUCCESS);
  CHECK(session.ask(Command::synchronize_stream, wire::SynchronizeStream{other}) == CUDA_SUCCESS);
  const pid_t worker = static_cast<pid_t>(session.reply.worker_pid);
  session.client.close();
  CHECK(eventually([&] {
    const auto workers = pool.poold().workers();
    return std::find(workers.begin(), workers.end(), worker) == workers.end();
  }));
}

TEST_CASE("a client that does not read its bulk connection holds up that copy alone") {
  Pool pool;
  Session session(pool);
  Link link(session);
  constexpr uint64_t kMuch = 64 << 20;  // more than socket buffers hold
  session.send(Command::map_memory, wire::MapMemory{session.memory() + kMuch, kMuch, 0, 0});
  session.send(Command::bulk_from_device, wire::BulkCopy{0, session.memory() + kMuch, kMuch, kMuch, 1, 0, 0});
  session.client.ping();
  const uint64_t wait =
      session.send(Command::synchronize_stream, wire::SynchronizeStream{0}, wire::kWantsReply);
  session.client.ping();
  std::string received(kMuch + kMuch / kPiece * sizeof(wire::BulkHeader), '\0');
  CHECK(transport::receive_exact(link.connection(), std::as_writable_bytes(std::span(received)),
                                 transport::Clock::now() + std::chrono::seconds(60)));
  CHECK(session.client.receive_reply_to(wait).header.result == CUDA_SUCCESS);
}
