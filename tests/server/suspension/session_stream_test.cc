// Tests of a session's way into a file and back, with the test in the place of the worker.
#include "server/suspension/session_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <limits>
#include <span>
#include <vector>

#include "protocol/wire/commands.h"
#include "protocol/wire/migration.h"
#include "tests/server/suspension/memory_file.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::suspension;
using testing::MemoryFile;

namespace {

// Both ends of the socket between poold and the worker.
struct Pair {
  Pair() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0); }
  ~Pair() {
    ::close(ends[0]);
    close_worker();
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  void close_worker() {
    if (ends[1] >= 0) ::close(ends[1]);
    ends[1] = -1;
  }
  int poold() const { return ends[0]; }
  int worker() const { return ends[1]; }
  int ends[2]{-1, -1};
};

std::string command(uint16_t id, const std::string& body, const std::string& reply = "") {
  const wire::AdoptedCommand prefix{static_cast<uint32_t>(reply.size()), reply.empty() ? 0u : 1u};
  const wire::CommandHeader header{.length = static_cast<uint32_t>(body.size()), .id = id};
  return std::string(reinterpret_cast<const char*>(&prefix), sizeof prefix) +
         std::string(reinterpret_cast<const char*>(&header), sizeof header) + body + reply;
}

std::string session_of(size_t body_bytes) {
  return command(1, "body", "reply") + command(2, "") + command(3, std::string(body_bytes, 'x')) +
         command(static_cast<uint16_t>(wire::Command::end_migration), std::string(24, '\0'));
}

void send(int socket, const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = ::send(socket, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return;  // the other side says why
    at += static_cast<size_t>(sent);
  }
}

std::string receive(int socket, size_t size) {
  std::string bytes(size, '\0');
  size_t at = 0;
  for (ssize_t got = 1; at < size && got > 0; at += static_cast<size_t>(std::max<ssize_t>(got, 0)))
    got = ::recv(socket, bytes.data() + at, size - at, 0);
  return bytes.substr(0, at);
}

wire::MessageHeader receive_answer(int socket, std::string* reason) {
  wire::MessageHeader header;
  const std::string bytes = receive(socket, sizeof header);
  REQUIRE(bytes.size() == sizeof header);
  std::memcpy(&header, bytes.data(), sizeof header);
  *reason = receive(socket, header.length);
  return header;
}

void send_answer(int socket, int32_t result, const std::string& reason) {
  const wire::MessageHeader header{
      .length = static_cast<uint32_t>(reason.size()), .kind = wire::MessageKind::reply, .result = result};
  send(socket, std::string(reinterpret_cast<const char*>(&header), sizeof header) + reason);
}

// A worker's reply to the hello that no other server has sent.
void send_hello_reply(int socket) {
  const wire::Preamble preamble{.length = 3};
  send(socket, std::string(reinterpret_cast<const char*>(&preamble), sizeof preamble) + "abc");
}

Header header() {
  Header made;
  made.set_protocol_version(wire::kPeerProtocolVersion);
  made.set_number(7);
  made.set_session_id(std::string(16, 'i'));
  made.set_resume_key(std::string(32, 'k'));
  made.set_tenant("tenant");
  return made;
}

Result<void> store(int file, const std::string& session, Budget& budget, uint64_t* written = nullptr,
                   const std::optional<Secret>& secret = {}) {
  Pair pair;
  std::atomic<uint64_t> bytes{0};
  auto stored = std::async(
      std::launch::async, [&] { return store_session(pair.poold(), file, header(), secret, budget, bytes); });
  send(pair.worker(), session);
  pair.close_worker();
  auto result = stored.get();
  if (written) *written = bytes;
  return result;
}

struct Restored {
  Result<void> result;
  std::string received;
};

// Restores the file to a worker that answers after `answers_after` bytes.
Restored restore(int file, size_t answers_after, int32_t answer, const std::string& reason,
                 const std::optional<Secret>& secret = {}) {
  Pair pair;
  auto restored = std::async(std::launch::async, [&]() -> Result<void> {
    auto reader = RecordReader::open(file, secret);
    if (!reader) return reader.error();
    if (auto read = read_header(*reader); !read) return read.error();
    auto result = restore_session(*reader, pair.poold());
    ::shutdown(pair.poold(), SHUT_RDWR);
    return result;
  });
  send_hello_reply(pair.worker());
  std::string received = receive(pair.worker(), answers_after);
  send_answer(pair.worker(), answer, reason);
  auto result = restored.get();
  return {std::move(result), std::move(received)};
}

constexpr size_t kLarge = 3u << 20;

}  // namespace

TEST_CASE("a worker gets what another one has sent, and its answer counts") {
  for (const size_t body : {size_t{10}, kLarge}) {
    const std::string session = session_of(body);
    for (const auto& secret : {std::optional<Secret>(), std::optional(*secret_of(std::string(40, 's')))}) {
      const MemoryFile file;
      Budget budget(64u << 20);
      uint64_t written = 0;
      REQUIRE(store(file.descriptor(), session, budget, &written, secret));
      CHECK(written == file.size());
      CHECK(budget.used() == written);
      const auto good = restore(file.descriptor(), session.size(), 0, "", secret);
      CHECK(good.result);
      CHECK(good.received == session);
      const auto refused = restore(file.descriptor(), session.size(), 801, "no memory", secret);
      REQUIRE_FALSE(refused.result);
      CHECK(refused.result.error().code == ErrorCode::refused);
      CHECK(refused.result.error().message == "no memory");
    }
  }
}

TEST_CASE("a worker that refuses a command early is heard") {
  const MemoryFile file;
  Budget budget(64u << 20);
  REQUIRE(store(file.descriptor(), session_of(kLarge), budget));
  const auto refused = restore(file.descriptor(), 10, 801, "no such thing");
  REQUIRE_FALSE(refused.result);
  CHECK(refused.result.error().message == "no such thing");
}

TEST_CASE("a session larger than the budget is not stored, and the budget is as large as before") {
  const MemoryFile file;
  Budget budget(1u << 20);
  uint64_t written = 0;
  const auto stored = store(file.descriptor(), session_of(kLarge), budget, &written);
  REQUIRE_FALSE(stored);
  CHECK(stored.error().code == ErrorCode::limit);
  CHECK(budget.used() == written);
  CHECK(written <= budget.limit());
}

TEST_CASE("a worker that ends early, or breaks the format, has stored nothing") {
  const std::string session = session_of(100);
  for (size_t size = 0; size < session.size(); size += 7) {
    const MemoryFile file;
    Budget budget(64u << 20);
    CHECK_FALSE(store(file.descriptor(), session.substr(0, size), budget));
  }
  const MemoryFile file;
  Budget budget(64u << 20);
  CHECK_FALSE(store(file.descriptor(), std::string(64, '\xff'), budget));
}

TEST_CASE("a file that is cut at any record restores nothing, and its worker gets no end") {
  const MemoryFile file;
  Budget budget(64u << 20);
  const std::string session = session_of(kLarge);
  REQUIRE(store(file.descriptor(), session, budget));
  for (off_t size = file.size() - 1; size > 0; size -= 400'000) {
    REQUIRE(::ftruncate(file.descriptor(), size) == 0);
    const auto cut = restore(file.descriptor(), session.size(), 0, "");
    INFO(size << " bytes");
    CHECK_FALSE(cut.result);
    CHECK(cut.received.size() < session.size());
  }
}

TEST_CASE("a header with a time that cannot be counted in nanoseconds is refused") {
  const auto accepts = [](int64_t started_ms, int64_t suspended_ms) {
    const MemoryFile file;
    auto writer = RecordWriter::begin(file.descriptor(), {});
    REQUIRE(writer);
    Header forged = header();
    forged.set_started_ms(started_ms);
    forged.set_suspended_ms(suspended_ms);
    const std::string bytes = forged.SerializeAsString();
    REQUIRE(writer->append(RecordKind::header, std::as_bytes(std::span(bytes))));
    auto reader = RecordReader::open(file.descriptor(), {});
    REQUIRE(reader);
    return read_header(*reader).ok();
  };
  constexpr int64_t kNow = 1'800'000'000'000, kLeast = std::numeric_limits<int64_t>::min(),
                    kMost = std::numeric_limits<int64_t>::max();
  CHECK(accepts(kNow, kNow));
  CHECK(accepts(0, 0));
  for (const int64_t wrong : {kLeast, int64_t{-1}, kMost / 1'000'000 + 1, kMost}) {
    INFO(wrong);
    CHECK_FALSE(accepts(wrong, kNow));
    CHECK_FALSE(accepts(kNow, wrong));
  }
}

TEST_CASE("the answer to the worker that has stored its session") {
  for (const auto& result : {Result<void>(), Result<void>(Error{ErrorCode::limit, "the disk is full"})}) {
    const Pair pair;
    answer_worker(pair.poold(), result);
    std::string reason;
    const auto answer = receive_answer(pair.worker(), &reason);
    CHECK(answer.kind == wire::MessageKind::reply);
    CHECK((answer.result == 0) == result.ok());
    CHECK(reason == (result ? "" : "the disk is full"));
  }
}
