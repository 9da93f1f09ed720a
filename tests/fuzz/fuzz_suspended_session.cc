// Fuzzes a suspended session's way into a file, with the bytes that its worker sends, and out of it, with the
// answer of a new worker. With the first byte's highest bit, the input is the file itself instead. What is
// stored is what was sent, up to the last command, and an altered file restores nothing.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "protocol/wire/frame.h"
#include "protocol/wire/migration.h"
#include "server/suspension/session_stream.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/quiet_protobuf.h"
#include "tests/fuzz/require.h"
#include "tests/server/suspension/memory_file.h"

using namespace gpupool;

namespace {

// poold's end of a socket whose other end has sent `bytes` and ended.
struct Sent {
  explicit Sent(const std::string& bytes) {
    int ends[2];
    fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    const int room = 1 << 20;
    ::setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    fits = ::send(ends[1], bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(bytes.size());
    ::shutdown(ends[1], SHUT_WR);
    poold = ends[0];
    worker = ends[1];
  }
  ~Sent() {
    ::close(poold);
    ::close(worker);
  }
  Sent(const Sent&) = delete;
  Sent& operator=(const Sent&) = delete;
  // What poold has sent to the worker until now.
  std::string received() const {
    std::string bytes(1 << 20, '\0');
    const ssize_t got = ::recv(worker, bytes.data(), bytes.size(), MSG_DONTWAIT);
    return bytes.substr(0, static_cast<size_t>(got < 0 ? 0 : got));
  }
  bool fits = false;
  int poold = -1, worker = -1;
};

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

suspension::Header header() {
  suspension::Header made;
  made.set_protocol_version(wire::kPeerProtocolVersion);
  made.set_session_id(std::string(16, 'i'));
  made.set_resume_key(std::string(32, 'k'));
  return made;
}

void restore(int file, const std::string* expected) {
  auto reader = suspension::RecordReader::open(file, std::nullopt);
  if (!reader) return fuzz::require(!expected);
  const auto read = suspension::read_header(*reader);
  if (!read) return fuzz::require(!expected);
  for (const int64_t time : {read->started_ms(), read->suspended_ms()}) {
    // poold counts with them in nanoseconds.
    fuzz::require(time >= 0 && time < std::chrono::nanoseconds::max() / std::chrono::milliseconds(1));
  }
  const Sent answered(bytes_of(wire::Preamble{}) + bytes_of(wire::MessageHeader{}));
  const auto restored = suspension::restore_session(*reader, answered.poold);
  // What follows the last command is not stored. The worker has answered already, so poold may notice that
  // before it has sent all.
  if (restored && expected) fuzz::require(expected->starts_with(answered.received()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::quiet_protobuf();
  fuzz::Input input(data, size);
  const bool is_file = (input.get<uint8_t>() & 128) != 0;
  const std::string bytes = input.rest();
  if (is_file) {
    const testing::MemoryFile file(std::as_bytes(std::span(bytes)));
    restore(file.descriptor(), nullptr);
    return 0;
  }
  const testing::MemoryFile file;
  const Sent sent(bytes);
  if (!sent.fits) return 0;
  suspension::Budget budget(1u << 20);
  std::atomic<uint64_t> written{0};
  const auto stored =
      suspension::store_session(sent.poold, file.descriptor(), header(), std::nullopt, budget, written);
  fuzz::require(budget.used() == written && written <= budget.limit());
  if (!stored) return 0;
  fuzz::require(written == file.size());
  restore(file.descriptor(), &bytes);
  return 0;
}
