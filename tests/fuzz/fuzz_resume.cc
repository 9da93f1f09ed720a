// Fuzzes a connection that continues on other carriers (protocol/transport/resume/) with a peer that breaks
// carriers at any byte and acknowledges and resumes at any position. The input is a sequence of calls.
//
// Each carrier must carry the stream from the position with which the peer resumed, without a gap or a
// repetition. A peer that tells the truth can always resume, unless more bytes are unacknowledged than are
// kept. Bytes in both streams are a function of their position.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "protocol/transport/resume/resumable_connection.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

using namespace gpupool;
using namespace gpupool::transport;
using fuzz::require;

namespace {

constexpr size_t kLongest = 200'000;  // bytes of one send_some(), more than two blocks of KeptBytes
constexpr size_t kPeriod = 65'521;    // of the streams; a prime, so that no block of KeptBytes repeats it
constexpr size_t kKept[] = {0, 1'000, 100'000, 300'000};
constexpr ErrorCode kFailures[] = {ErrorCode::lost, ErrorCode::reset, ErrorCode::closed,
                                   ErrorCode::unavailable, ErrorCode::malformed};

const std::byte* stream_at(uint64_t position) {
  static const std::vector<std::byte>& bytes = *[] {
    auto* const made = new std::vector<std::byte>(kPeriod + kLongest);
    uint32_t state = 1;
    for (size_t i = 0; i < made->size(); ++i) {
      if (i < kPeriod) state = state * 1'664'525 + 1'013'904'223;
      (*made)[i] = i < kPeriod ? static_cast<std::byte>(state >> 24) : (*made)[i - kPeriod];
    }
    return made;
  }();
  return bytes.data() + position % kPeriod;
}

// The peer, and what it lets through. All carriers of a connection share it.
struct Peer {
  uint64_t received = 0;  // position of the next byte on the carrier
  uint64_t furthest = 0;  // bytes of the stream that it has had
  uint64_t sent = 0;      // of the stream to this side
  size_t room = 0;        // bytes that send_some() takes
  size_t room_after_wait = 1;
  size_t readable = 0;
  std::optional<ErrorCode> fails;  // the next call, after it has delivered what `room` allows
  std::function<void()> on_failed_wait, on_wait;
};

class Carrier final : public Connection {
 public:
  explicit Carrier(Peer& peer) : peer_(peer) {}
  Result<size_t> send_some(std::span<const iovec> buffers) override {
    size_t taken = 0;
    for (const iovec& buffer : buffers) {
      const size_t part = std::min(buffer.iov_len, peer_.room - taken);
      if (part == 0) continue;
      require(std::memcmp(buffer.iov_base, stream_at(peer_.received + taken), part) == 0);
      taken += part;
    }
    peer_.room -= taken;
    peer_.received += taken;
    peer_.furthest = std::max(peer_.furthest, peer_.received);
    if (const auto failed = take_failure()) return *failed;
    return taken;
  }
  Result<size_t> receive_some(std::span<std::byte> buffer) override {
    if (const auto failed = take_failure()) return *failed;
    const size_t part = std::min(buffer.size(), peer_.readable);
    if (part == 0) return part;
    std::memcpy(buffer.data(), stream_at(peer_.sent), part);
    peer_.readable -= part;
    peer_.sent += part;
    return part;
  }
  Result<Ready> wait(bool for_receive, bool for_send, Deadline) override {
    if (const auto failed = take_failure()) {
      peer_.on_failed_wait();
      return *failed;
    }
    peer_.on_wait();
    peer_.room = std::max(peer_.room, peer_.room_after_wait);
    return for_receive && for_send ? Ready::both : for_receive ? Ready::receive : Ready::send;
  }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "the fuzzer"; }
  int release_descriptor() override { return -1; }

 private:
  std::optional<Error> take_failure() {
    if (!peer_.fails) return std::nullopt;
    const Error failed{*std::exchange(peer_.fails, std::nullopt), "failed"};
    return failed;
  }

  Peer& peer_;
};

class Attack {
 public:
  explicit Attack(fuzz::Input input) : input_(input), most_kept_(kKept[input_.below(std::size(kKept))]) {}

  void run() {
    // Else a wait to receive would block, because no other thread continues the connection.
    peer_.on_failed_wait = [this] { connection_.interrupt(); };
    peer_.on_wait = [this] { act_meanwhile(); };
    connection_.start();
    for (int calls = 0; !input_.empty() && calls < 60; ++calls) call();
    ask_carrier();
    connection_.close();
    require(connection_.over() && !connection_.wait_for_break(Clock::now()));
    require(!connection_.receive_some({}).ok() && !connection_.send_some({}).ok());
  }

 private:
  void call() {
    switch (input_.below(10)) {
      case 0:
      case 1: return send();
      case 2: return receive();
      case 3: return tell(std::min(told_ + input_.below(256), peer_.furthest));
      case 4: return tell(input_.below(2) == 0 ? peer_.furthest : input_.get<uint64_t>());
      case 5: honest_ = false; return connection_.acknowledge_low(input_.get<uint32_t>());
      case 6: peer_.fails = kFailures[input_.below(std::size(kFailures))]; return;
      case 7: require(connection_.break_carrier({ErrorCode::lost, "cut"}) != connection_.over()); return;
      case 8: return resume();
      default: return wait();
    }
  }

  // Calls that the connection passes on to its carrier.
  void ask_carrier() {
    connection_.check_peer_alive();
    (void)connection_.wait_for_end();
    require(!connection_.shares_memory() && connection_.direct_memory() == nullptr &&
            connection_.release_descriptor() < 0 && connection_.carrier() == "tcp" &&
            connection_.patience().polls_per_yield == 1);
    require(!connection_.send_descriptor(0, Clock::now()) && !connection_.receive_descriptor(Clock::now()));
  }

  size_t length() {
    switch (input_.below(4)) {
      case 0: return input_.get<uint8_t>();
      case 1: return input_.get<uint8_t>() * 16u;
      case 2: return input_.get<uint16_t>();
      default: return input_.get<uint32_t>() % kLongest;
    }
  }
  // Acknowledges, truthfully or not.
  void tell(uint64_t position) {
    told_ = std::max(told_, position);
    if (position > peer_.furthest) honest_ = false;
    if (input_.below(2) == 0)
      connection_.acknowledge(position);
    else
      connection_.acknowledge_low(static_cast<uint32_t>(position));
  }

  void send() {
    peer_.room = length();
    // Begins with what the last call has not sent.
    const size_t bytes = std::max(length(), unsent_);
    const size_t first = bytes == 0 ? 0 : input_.below(static_cast<uint32_t>(bytes));
    auto* const from = const_cast<std::byte*>(stream_at(at_));
    const iovec parts[] = {{from, first}, {nullptr, 0}, {from + first, bytes - first}};
    const bool broken = connection_.broken();
    const auto sent = connection_.send_some(parts);
    if (!sent) return require(connection_.over());
    require(*sent <= bytes);
    if (broken) return require(*sent == 0);
    unsent_ = bytes - *sent;
    at_ += *sent;
    // All bytes that were sent before were dropped if these did not fit.
    if (at_ - std::min(at_, told_) > most_kept_) complete_ = false;
    if (connection_.unacknowledged() > at_ && honest_) require(false);
  }

  void receive() {
    peer_.readable = length();
    static std::vector<std::byte> memory(kLongest);
    const auto buffer = std::span(memory).first(length());
    const auto received = connection_.receive_some(buffer);
    if (!received) return require(connection_.over());
    require(*received == 0 || std::memcmp(buffer.data(), stream_at(read_), *received) == 0);
    read_ += *received;
    require(connection_.received() == read_);
    if (connection_.acknowledgement_due()) require(connection_.tell_received() == read_);
  }

  void resume() {
    if (!connection_.broken() || connection_.over()) return;
    require(connection_.wait_for_break(Clock::now()).has_value());
    require(connection_.retire_carrier() == read_);
    const uint32_t how = input_.below(8);
    uint64_t position = peer_.furthest;
    if (how == 0) position = input_.get<uint64_t>();
    if (how == 1) position = told_ + input_.get<uint16_t>();
    if (how == 2) position -= std::min<uint64_t>(position, input_.get<uint32_t>() % kLongest);
    // Bytes in transit may be lost when the carrier breaks, but none that the peer has acknowledged.
    const bool possible = told_ <= position && position <= peer_.furthest;
    const Peer before = peer_;
    const bool was_honest = std::exchange(honest_, honest_ && possible);
    peer_.sent = read_;
    peer_.received = peer_.furthest = position;
    peer_.room = length();
    peer_.room_after_wait = 4096 + length();
    meanwhile_ = input_.below(4);
    const auto resumed = connection_.resume(std::make_unique<Carrier>(peer_), position);
    meanwhile_ = 0;
    if (resumed) {
      told_ = std::max(told_, position);
      return;
    }
    require(!resumed.error().message.empty() && !(possible && was_honest && complete_));
    peer_ = before;
    honest_ = was_honest;
    if (input_.below(2) == 0) connection_.give_up(resumed.error());
  }

  // Plays the other threads while resume() waits for room to send again what the peer has missed.
  void act_meanwhile() {
    if (meanwhile_ == 0) return;
    --meanwhile_;
    switch (input_.below(4)) {
      case 0: return tell(std::min(told_ + input_.get<uint32_t>(), peer_.furthest));
      case 1: return tell(told_ + input_.get<uint32_t>());
      case 2: return receive();
      default: return send();
    }
  }

  void wait() {
    const uint32_t directions = 1 + input_.below(3);
    // Else it would block while the connection is broken, or when its carrier fails. An interrupt does not
    // end a wait that only sends.
    if (directions == 2)
      connection_.keep_deadlines();
    else if (connection_.broken())
      connection_.interrupt();
    const auto ready = connection_.wait((directions & 1) != 0, (directions & 2) != 0, Clock::now());
    require(ready || connection_.over());
  }

  fuzz::Input input_;
  const size_t most_kept_;
  Peer peer_;
  ResumableConnection connection_{std::make_unique<Carrier>(peer_), most_kept_};
  uint64_t at_ = 0, read_ = 0;  // bytes accepted, and received
  size_t unsent_ = 0;           // bytes that the last send_some() has not accepted
  uint32_t meanwhile_ = 0;      // calls of other threads while resume() waits
  uint64_t told_ = 0;           // highest position acknowledged
  bool honest_ = true;          // the peer has acknowledged and resumed only what it had
  bool complete_ = true;        // never more unacknowledged than kept
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Attack attack(fuzz::Input(data, size));
  attack.run();
  return 0;
}
