// Tests compressed, plain and damaged pieces on a connection.
#include "protocol/compression/pieces.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/compression/lz4.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::compression;

namespace {

using Buffer = std::vector<std::byte>;

struct Ends {
  Ends() {
    auto listener = transport::listen({"tcp", "127.0.0.1", 0}, {});
    REQUIRE(listener);
    std::thread connecting([&] {
      auto connected = transport::connect((*listener)->endpoint(), {});
      if (connected) client = std::move(*connected);
    });
    auto accepted = (*listener)->accept(std::nullopt);
    connecting.join();
    REQUIRE(accepted);
    REQUIRE(client);
    server = std::move(*accepted);
  }
  std::unique_ptr<transport::Connection> client, server;
};

Buffer shrinking(size_t size) {
  Buffer bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i / 100);
  return bytes;
}

Buffer random(size_t size) {
  Buffer bytes(size);
  uint32_t state = 1;
  for (auto& byte : bytes) byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

// Takes as many bytes as it is allowed to, and never waits.
class NarrowConnection final : public transport::Connection {
 public:
  Result<size_t> send_some(std::span<const iovec> buffers) override {
    const size_t before = sent.size();
    for (const iovec& buffer : buffers) {
      const size_t step = std::min(buffer.iov_len, room);
      const auto* const from = static_cast<const std::byte*>(buffer.iov_base);
      sent.insert(sent.end(), from, from + step);
      room -= step;
    }
    if (taken) taken();
    return sent.size() - before;
  }
  Result<size_t> receive_some(std::span<std::byte> buffer) override { return buffer.size(); }
  Result<Ready> wait(bool, bool, transport::Deadline) override {
    ++waits;
    return Ready::send;
  }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "a test"; }
  int release_descriptor() override { return -1; }

  size_t room = 0;
  int waits = 0;
  Buffer sent;
  std::function<void()> taken;  // called before send_some() returns
};

wire::BulkHeader header_of(size_t size) {
  wire::BulkHeader header;
  header.length = static_cast<uint32_t>(size);
  header.copy = 7;
  header.offset = 9;
  return header;
}

}  // namespace

TEST_CASE("a piece arrives unchanged whether compressed or not and in one part or many") {
  const size_t size = GENERATE(size_t{1}, size_t{100}, size_t{65'537}, size_t{wire::kBulkChunkBytes});
  const bool shrinks = GENERATE(true, false);
  const auto policy = GENERATE(Policy::off, Policy::always);
  CAPTURE(size, shrinks, policy);
  Ends ends;
  Buffer data = shrinks ? shrinking(size) : random(size);
  std::thread sending([&] {
    PieceSender sender(policy);
    const iovec whole{data.data(), size};
    const iovec halves[] = {{data.data(), size / 2}, {data.data() + size / 2, size - size / 2}};
    (void)sender.send(*ends.client, header_of(size), {&whole, 1});
    (void)sender.send(*ends.client, header_of(size), halves);
    (void)sender.send(*ends.client, header_of(size), {&whole, 1});
  });
  PieceReader reader(*ends.server);
  const bool packed = policy == Policy::always && shrinks && size > 64;
  for (int i = 0; i < 3; ++i) {
    const auto header = reader.next();
    REQUIRE(header);
    CHECK(header->copy == 7);
    CHECK(header->offset == 9);
    CHECK((header->flags == wire::kBulkCompressed) == packed);
    CHECK(reader.fits(size));
    CHECK_FALSE(reader.fits(header->length - (packed ? 0 : 1)));
    if (i == 1) {
      CHECK(reader.skip());
      continue;
    }
    Buffer received(size);
    REQUIRE(reader.read(received));
    CHECK((received == data));
  }
  sending.join();
}

TEST_CASE("malformed compressed data is rejected and nothing is written beyond the piece") {
  const Buffer data = shrinking(10'000);
  Buffer packed(10'000);
  packed.resize(pack(data, packed));
  REQUIRE(packed.size() > 10);
  REQUIRE(packed.size() < 9'000);
  Buffer raw(10'000 + 64, std::byte{0x5a});
  const auto piece = std::span(raw).first(10'000);
  CHECK(unpack(packed, piece));
  for (size_t cut = 0; cut < packed.size(); ++cut) CHECK_FALSE(unpack(std::span(packed).first(cut), piece));
  CHECK_FALSE(unpack(packed, piece.first(9'999)));
  CHECK_FALSE(unpack(packed, std::span(raw).first(10'001)));
  for (size_t at = 0; at < packed.size(); ++at) {
    Buffer changed = packed;
    changed[at] ^= std::byte{0xff};
    (void)unpack(changed, piece);
  }
  CHECK(std::all_of(raw.begin() + 10'000, raw.end(), [](std::byte byte) { return byte == std::byte{0x5a}; }));
}

TEST_CASE("an invalid header is malformed and an end between pieces is not") {
  Ends ends;
  wire::BulkHeader header = header_of(100);
  bool closed = false;
  SECTION("no bytes") {
    header.length = 0;
  }
  SECTION("too many") {
    header.length = wire::kBulkChunkBytes + 1;
  }
  SECTION("a flag of the future") {
    header.flags = 2;
  }
  SECTION("the end") {
    closed = true;
  }
  if (closed) {
    ends.client->close();
  } else {
    const iovec part{&header, sizeof header};
    REQUIRE(transport::send_all(*ends.client, {&part, 1}, {}));
  }
  PieceReader reader(*ends.server);
  const auto next = reader.next();
  REQUIRE_FALSE(next);
  CHECK(next.error().code == (closed ? ErrorCode::closed : ErrorCode::malformed));
}

TEST_CASE("an acknowledgement waits for no room and its rest precedes the next piece") {
  auto made = std::make_unique<NarrowConnection>();
  NarrowConnection& narrow = *made;
  transport::ResumableConnection connection(std::move(made));
  connection.start();
  Buffer buffer(1u << 20);
  PieceSender sender(Policy::off, &connection);
  sender.acknowledge();  // not due
  REQUIRE(connection.receive_some(buffer));
  narrow.room = 10;
  sender.acknowledge();
  CHECK(narrow.sent.size() == 10);
  sender.acknowledge();
  CHECK(narrow.sent.size() == 10);
  REQUIRE(connection.receive_some(buffer));
  narrow.room = 5;
  sender.acknowledge();
  CHECK(narrow.sent.size() == 15);
  CHECK(narrow.waits == 0);

  narrow.room = 1000;
  const Buffer piece = random(100);
  const iovec part{const_cast<std::byte*>(piece.data()), piece.size()};
  REQUIRE(sender.send(connection, header_of(piece.size()), {&part, 1}));
  const auto header_at = [&](size_t at) {
    wire::BulkHeader header;
    REQUIRE(narrow.sent.size() >= at + sizeof header);
    std::memcpy(&header, narrow.sent.data() + at, sizeof header);
    return header;
  };
  constexpr size_t kHeader = sizeof(wire::BulkHeader);
  CHECK(header_at(0).flags == wire::kBulkAcknowledge);
  CHECK(header_at(0).offset == 1u << 20);
  CHECK(header_at(kHeader).length == piece.size());
  CHECK(header_at(2 * kHeader + piece.size()).offset == 2u << 20);
  sender.acknowledge();  // not due
  CHECK(narrow.sent.size() == 3 * kHeader + piece.size());
}

TEST_CASE("a sender acknowledges after its piece what arrived while it was sending") {
  auto made = std::make_unique<NarrowConnection>();
  NarrowConnection& narrow = *made;
  transport::ResumableConnection connection(std::move(made));
  connection.start();
  PieceSender sender(Policy::off, &connection);
  narrow.room = 1000;
  bool received = false;
  narrow.taken = [&] {  // another thread receives while this one is in the middle of its piece
    if (std::exchange(received, true)) return;
    std::thread([&] {
      Buffer buffer(1u << 20);
      CHECK(connection.receive_some(buffer));
      sender.acknowledge();
    }).join();
  };
  const Buffer piece = random(100);
  const iovec part{const_cast<std::byte*>(piece.data()), piece.size()};
  const size_t whole = sizeof(wire::BulkHeader) + piece.size();
  SECTION("a piece") {
    REQUIRE(sender.send(connection, header_of(piece.size()), {&part, 1}));
  }
  SECTION("a last piece") {
    REQUIRE(sender.send_last(connection, header_of(piece.size()), {&part, 1}));
  }
  SECTION("without room for all of it") {
    const size_t accepted = whole + 10;
    narrow.room = accepted;
    REQUIRE(sender.send(connection, header_of(piece.size()), {&part, 1}));
    CHECK(narrow.waits == 0);
    CHECK(narrow.sent.size() == accepted);
    narrow.room = 1000;
    sender.acknowledge();
  }
  wire::BulkHeader acknowledgement;
  REQUIRE(narrow.sent.size() == whole + sizeof acknowledgement);
  std::memcpy(&acknowledgement, narrow.sent.data() + whole, sizeof acknowledgement);
  CHECK(acknowledgement.flags == wire::kBulkAcknowledge);
  CHECK(acknowledgement.offset == 1u << 20);
}

TEST_CASE("the memory of a last piece is not read any more when the peer has all of it") {
  auto made = std::make_unique<NarrowConnection>();
  NarrowConnection& narrow = *made;
  transport::ResumableConnection connection(std::move(made));
  connection.start();
  PieceSender sender(Policy::off, &connection);
  const Buffer piece = random(100'000);
  Buffer memory = piece;
  const size_t whole = sizeof(wire::BulkHeader) + piece.size();
  narrow.room = whole;
  narrow.taken = [&] {  // the program uses the memory for something else
    if (narrow.sent.size() == whole) std::fill(memory.begin(), memory.end(), std::byte{});
  };
  const iovec part{memory.data(), memory.size()};
  REQUIRE(sender.send_last(connection, header_of(piece.size()), {&part, 1}));
  CHECK(memory != piece);

  REQUIRE(connection.break_carrier({ErrorCode::lost, "cut"}));
  connection.retire_carrier();
  auto next = std::make_unique<NarrowConnection>();
  NarrowConnection& again = *next;
  again.room = whole;
  REQUIRE(connection.resume(std::move(next), 0));
  REQUIRE(again.sent.size() == whole);
  CHECK(std::memcmp(again.sent.data() + sizeof(wire::BulkHeader), piece.data(), piece.size()) == 0);
}
