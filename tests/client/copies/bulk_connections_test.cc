// Tests bulk connections, and the copies that use them, against a fake worker: opening, pieces in both
// directions, wrong pieces, and the end of a connection.
#include "client/copies/bulk_connections.h"

#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "client/copies/transfer.h"
#include "tests/client/fake_session.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using wire::Command;

namespace {

constexpr uint64_t kPiece = wire::kBulkChunkBytes;
const CUstream kStream = nullptr;

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> data(bytes);
  uint32_t state = 1;
  for (std::byte& byte : data) byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  return data;
}

struct Piece {
  wire::BulkHeader header;
  std::vector<std::byte> bytes;
};
// Throws, because other threads than Catch's call it.
Piece receive_piece(transport::Connection& connection) {
  Piece piece;
  const auto deadline = transport::Clock::now() + kPatience;
  const auto header = std::as_writable_bytes(std::span(&piece.header, 1));
  if (const auto received = transport::receive_exact(connection, header, deadline); !received)
    throw std::runtime_error("no piece: " + received.error().message);
  if (piece.header.length > kPiece) throw std::runtime_error("a piece is too long");
  piece.bytes.resize(piece.header.length);
  if (const auto received = transport::receive_exact(connection, piece.bytes, deadline); !received)
    throw std::runtime_error("no bytes of a piece: " + received.error().message);
  return piece;
}

void send_piece(transport::Connection& connection, uint64_t copy, uint64_t offset,
                std::span<const std::byte> bytes) {
  wire::BulkHeader header{.length = static_cast<uint32_t>(bytes.size()), .copy = copy, .offset = offset};
  const iovec parts[] = {{&header, sizeof header}, {const_cast<std::byte*>(bytes.data()), bytes.size()}};
  (void)transport::send_all(connection, parts, transport::Clock::now() + kPatience);
}

void offer_bulk(FakeWorker& worker, unsigned connections) {
  worker.offer.bulk_connections = connections;
  worker.offer.bulk_token = "token of the session";
}
Settings with_connections(unsigned connections) {
  Settings settings = test_settings();
  settings.bulk_connections = connections;
  return settings;
}

// A session with one open bulk connection.
struct Linked {
  FakeWorker worker;
  Session& session;
  Context& context;
  Linked()
      : session((offer_bulk(worker, 1), open_session(worker, with_connections(1)))),
        context(make_context(session)) {
    session.links().open_now();
    REQUIRE(session.links().ready());
  }
};

}  // namespace

TEST_CASE("bulk connections: introduce themselves with the session's id and token") {
  FakeWorker worker;
  offer_bulk(worker, 3);
  Session& session = open_session(worker, with_connections(2));
  CHECK(worker.hellos().size() == 1);
  session.links().open_now();
  CHECK(session.links().ready());
  const auto hellos = worker.hellos();
  REQUIRE(hellos.size() == 3);  // the smaller number of both sides
  for (size_t i = 1; i < hellos.size(); ++i) {
    CHECK(hellos[i].session_id == worker.offer.session_id);
    CHECK(hellos[i].bulk_token == "token of the session");
    CHECK(hellos[i].token.empty());
  }
}

TEST_CASE("bulk connections: share the server's terms, which stay as they are for a reader during a move") {
  FakeWorker worker;
  BulkConnections links(open_session(worker).receiver(), [](const Error&) {});
  const auto terms_of = [](const std::string& token) {
    BulkConnections::Parameters terms;
    terms.peer_end.token = token;
    return terms;
  };
  links.configure(terms_of("first"));
  const auto first = links.parameters();
  CHECK(links.parameters() == first);  // no copy for each part of a copy between servers
  links.switch_to(links.prepare(terms_of("second"), {}));
  CHECK(first->peer_end.token == "first");
  CHECK(links.parameters()->peer_end.token == "second");
}

TEST_CASE("bulk connections: are opened in the background at first use") {
  FakeWorker worker;
  offer_bulk(worker, 1);
  Session& session = open_session(worker, with_connections(1));
  CHECK_FALSE(session.links().ready());
  CHECK(eventually([&] { return session.links().ready(); }));
  CHECK(worker.hellos().size() == 2);
}

TEST_CASE("bulk connections: none are opened if either side wants none") {
  FakeWorker worker;
  SECTION("the server") {
    offer_bulk(worker, 0);
  }
  SECTION("the client") {
    offer_bulk(worker, 4);
  }
  Session& session = open_session(worker, with_connections(worker.offer.bulk_connections == 0 ? 4 : 0));
  session.links().open_now();
  CHECK_FALSE(session.links().ready());
  CHECK(worker.hellos().size() == 1);
}

TEST_CASE("bulk connections: copies use the command connection if the server refuses them") {
  FakeWorker worker;
  offer_bulk(worker, 1);
  Session& session = open_session(worker, with_connections(1));
  Context& context = make_context(session);
  worker.offer.status = hello::Status::busy;
  session.links().open_now();
  CHECK_FALSE(session.links().ready());
  CHECK_FALSE(session.failed());
  const auto data = pattern(2 * kPiece);
  CHECK(copy_to_device(session, context, kStream, 0x1000, data.data(), make_rows(data.size(), 1, 0, 0),
                       CopyOrder::in_stream, Source::reusable) == CUDA_SUCCESS);
  CHECK(worker.await_command(Command::copy_to_device, 1).body.size() == sizeof(wire::CopyToDevice) + kPiece);
}

TEST_CASE("bulk connections: an upload's pieces carry its number, offsets and bytes") {
  Linked linked;
  const auto data = pattern(2 * kPiece + 100);
  std::vector<Piece> pieces;
  auto server = std::async(std::launch::async, [&] {
    for (int i = 0; i < 3; ++i) pieces.push_back(receive_piece(linked.worker.bulk(0)));
  });
  const CUresult result =
      copy_to_device(linked.session, linked.context, kStream, 0x1000, data.data(),
                     make_rows(data.size(), 1, 0, 0), CopyOrder::before_all, Source::reusable);
  server.get();
  CHECK(result == CUDA_SUCCESS);
  CHECK_FALSE(linked.session.copies_pending());
  const ReceivedCommand command = linked.worker.await_command(Command::bulk_to_device);
  const auto body = command.as<wire::BulkCopy>();
  CHECK(body.device == 0x1000);
  CHECK(body.width == data.size());
  CHECK(body.rows == 1);
  CHECK(body.flags == wire::kCopyOrdersStreams);
  std::vector<std::byte> received;
  for (const Piece& piece : pieces) {
    CHECK(piece.header.copy == command.header.sequence);
    CHECK(piece.header.offset == received.size());
    CHECK(piece.header.flags == 0);
    received.insert(received.end(), piece.bytes.begin(), piece.bytes.end());
  }
  CHECK(received == data);
}

TEST_CASE("bulk connections: an upload of rows sends them packed") {
  Linked linked;
  const uint64_t width = GENERATE(300, 5000);  // packed by a memcpy, and sent as a gather list
  const uint64_t pitch = width + 24, rows = 3 * kPiece / 2 / width;
  const auto data = pattern(pitch * rows);
  std::vector<std::byte> expected, received;
  for (uint64_t row = 0; row < rows; ++row)
    expected.insert(expected.end(), data.begin() + static_cast<ptrdiff_t>(row * pitch),
                    data.begin() + static_cast<ptrdiff_t>(row * pitch + width));
  auto server = std::async(std::launch::async, [&] {
    while (received.size() < expected.size()) {
      const Piece piece = receive_piece(linked.worker.bulk(0));
      received.insert(received.end(), piece.bytes.begin(), piece.bytes.end());
    }
  });
  CHECK(copy_to_device(linked.session, linked.context, kStream, 0x1000, data.data(),
                       make_rows(width, rows, pitch, width), CopyOrder::in_stream,
                       Source::reusable) == CUDA_SUCCESS);
  server.get();
  CHECK(received == expected);
}

TEST_CASE("bulk connections: a download scatters pieces in any order and waits for all of them") {
  const uint64_t width = 1000, pitch = 1024, rows = 2000;
  const uint64_t piece = wire::bulk_piece_bytes(width, rows);
  const auto data = pattern(width * rows);
  Linked linked;  // its worker's thread may still hold the data when the copy ends
  linked.worker.on(Command::bulk_from_device, [&](const ReceivedCommand& command) {
    linked.worker.reply(command.header.sequence);  // may overtake the data
    for (const uint64_t at : {piece, uint64_t{0}})
      send_piece(linked.worker.bulk(0), command.header.sequence, at,
                 std::span(data).subspan(at, std::min(piece, data.size() - at)));
  });
  std::vector<std::byte> memory(pitch * rows, std::byte{0x77});
  CHECK(copy_from_device(linked.session, linked.context, kStream, memory.data(), 0x1000,
                         make_rows(width, rows, pitch, width), true) == CUDA_SUCCESS);
  bool same = true, gaps = true;
  for (uint64_t row = 0; row < rows; ++row) {
    same &= std::equal(data.begin() + static_cast<ptrdiff_t>(row * width),
                       data.begin() + static_cast<ptrdiff_t>((row + 1) * width),
                       memory.begin() + static_cast<ptrdiff_t>(row * pitch));
    for (uint64_t at = width; at < pitch; ++at) gaps &= memory[row * pitch + at] == std::byte{0x77};
  }
  CHECK(same);
  CHECK(gaps);
}

TEST_CASE("bulk connections: an asynchronous download is pending until its reply") {
  const auto data = pattern(kPiece / 2);
  Linked linked;
  linked.worker.ignore(Command::bulk_from_device);
  std::vector<std::byte> memory(data.size());
  CHECK(copy_from_device(linked.session, linked.context, kStream, memory.data(), 0x1000,
                         make_rows(data.size(), 1, 0, 0), false) == CUDA_SUCCESS);
  CHECK(linked.session.copies_pending());
  const uint64_t copy = linked.worker.await_command(Command::bulk_from_device).header.sequence;
  send_piece(linked.worker.bulk(0), copy, 0, data);
  linked.worker.reply(copy);
  wire::Buffer reply;  // any wait receives what came before its own reply
  CHECK(linked.session.call(Command::await_barriers, &linked.context, wire::SynchronizeStream{}, reply) ==
        CUDA_SUCCESS);
  CHECK_FALSE(linked.session.copies_pending());
  CHECK(memory == data);
}

TEST_CASE("bulk connections: data of unknown copies is skipped") {
  const auto data = pattern(kPiece + 1);
  Linked linked;
  linked.worker.on(Command::bulk_from_device, [&](const ReceivedCommand& command) {
    const uint64_t copy = command.header.sequence;
    transport::Connection& link = linked.worker.bulk(0);
    const auto noise = pattern(500);
    send_piece(link, copy + 1000, 0, noise);
    send_piece(link, copy, 17, noise);  // no piece begins there
    send_piece(link, copy, 0, std::span(data).first(kPiece));
    send_piece(link, copy, kPiece, std::span(data).subspan(kPiece));
    linked.worker.reply(copy);
  });
  std::vector<std::byte> memory(data.size());
  CHECK(copy_from_device(linked.session, linked.context, kStream, memory.data(), 0x1000,
                         make_rows(data.size(), 1, 0, 0), true) == CUDA_SUCCESS);
  CHECK(memory == data);
  CHECK_FALSE(linked.session.failed());
}

TEST_CASE("bulk connections: a piece of the wrong size, or the end of a connection, fails the session") {
  std::function<void(uint64_t)> misbehave;
  Linked linked;
  transport::Connection& link = linked.worker.bulk(0);
  SECTION("too short") {
    misbehave = [&](uint64_t copy) { send_piece(link, copy, 0, pattern(10)); };
  }
  SECTION("ends inside a piece") {
    misbehave = [&](uint64_t copy) {
      wire::BulkHeader header{.length = kPiece, .copy = copy, .offset = 0};
      const iovec part{&header, sizeof header};
      (void)transport::send_all(link, {&part, 1}, transport::Clock::now() + kPatience);
      link.close();
    };
  }
  SECTION("closed") {
    misbehave = [&](uint64_t) { link.close(); };
  }
  linked.worker.on(Command::bulk_from_device,
                   [&](const ReceivedCommand& command) { misbehave(command.header.sequence); });
  std::vector<std::byte> memory(2 * kPiece, std::byte{0x77});
  CHECK(copy_from_device(linked.session, linked.context, kStream, memory.data(), 0x1000,
                         make_rows(memory.size(), 1, 0, 0), true) == Session::failure());
  CHECK(linked.session.failed());
  linked.worker.await_closed();
}

TEST_CASE("bulk connections: the end of the session ends a blocked upload") {
  Linked linked;
  const auto data = pattern(64 * kPiece);  // more than sockets hold: nothing reads the bulk connection
  linked.worker.on(Command::bulk_to_device, [&](const ReceivedCommand&) { linked.worker.close(); });
  CHECK(copy_to_device(linked.session, linked.context, kStream, 0x1000, data.data(),
                       make_rows(data.size(), 1, 0, 0), CopyOrder::in_stream,
                       Source::reusable) == Session::failure());
  CHECK(linked.session.failed());
  CHECK(eventually([&] { return !linked.session.copies_pending(); }));
}
