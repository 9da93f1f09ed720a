// Fuzzes the client's receiver with everything that a server may send after the hello, over a connection that
// replays the input. All waits must end, and nothing may be written outside a copy's destination. The bits of
// the last two bytes, which are also the last from the server, select how the connection and the program
// behave.
//
// Nothing starts the receiver's background thread: it is detached and needs a receiver that is never
// destroyed.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "client/process/log.h"
#include "client/process/trace.h"
#include "client/session/quota_refusals.h"
#include "client/session/receiver.h"
#include "tests/fuzz/require.h"

// Replaces client/process/trace.cc: traces nothing.
namespace gpupool::client::trace {
std::atomic<bool> enabled{false};
void count_received(uint16_t, size_t, unsigned) {}
}  // namespace gpupool::client::trace

// Replaces client/process/log.cc: checks that a message is one line of bounded length.
namespace gpupool::client {
void log_warning(const char* format, ...) {
  char text[8192];
  va_list values;
  va_start(values, format);
  const int length = std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  fuzz::require(length > 0 && static_cast<size_t>(length) < sizeof text);
  for (int i = 0; i < length; ++i) fuzz::require(static_cast<unsigned char>(text[i]) >= ' ');
}
}  // namespace gpupool::client

using namespace gpupool;
using fuzz::require;

namespace {

constexpr std::byte kGuard{0x5c};

class Server final : public transport::Connection {
 public:
  explicit Server(std::span<const std::byte> input) : input_(input), rest_(input) {
    if (input.size() >= 2) std::memcpy(&mode_, input.data() + input.size() - 2, sizeof mode_);
    silent_ = mode_ >> 1 & 7;
    repetitions_ = has(11) ? 16 : 0;
    pause_ = has(12) ? input.size() / 2 : 0;
  }

  // How this input's connection and program behave.
  bool has(unsigned bit) const { return (mode_ >> bit & 1) != 0; }
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(has(0) ? 0 : 1000); }
  bool resumes() const { return has(4); }
  bool bulk() const { return has(5); }
  bool reads_first() const { return has(6); }
  bool sends_first() const { return has(7); }
  bool one_row() const { return has(8); }
  bool traces() const { return has(9); }

  Result<size_t> send_some(std::span<const iovec>) override { return size_t{0}; }
  Result<size_t> receive_some(std::span<std::byte> buffer) override {
    if (is_silent()) return size_t{0};  // nothing yet
    if (rest_.empty() && repetitions_ != 0) --repetitions_, rest_ = input_;
    if (rest_.empty() && has(10)) return size_t{0};  // wait() fails
    if (rest_.empty()) return Error{ErrorCode::closed, "the input is over"};
    const size_t count =
        std::min({buffer.size(), rest_.size() - (rest_.size() > pause_ ? pause_ : 0), size_t{1000}});
    std::memcpy(buffer.data(), rest_.data(), count);
    rest_ = rest_.subspan(count);
    return count;
  }
  Result<Ready> wait(bool for_receive, bool, transport::Deadline) override {
    if (is_silent()) return --silent_, Ready::none;
    if (has(10) && rest_.empty()) return Error{ErrorCode::lost, "the connection is lost"};
    return for_receive ? Ready::receive : Ready::send;
  }
  Patience patience() const override { return {.time = std::chrono::microseconds(0), .polls_per_yield = 1}; }
  // Breaks once: then there is another carrier.
  bool break_carrier(const Error&) override { return resumes() && !std::exchange(broke_, true); }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "the fuzzer"; }
  int release_descriptor() override { return -1; }

 private:
  // This many calls of wait() see nothing, at the start or in the middle.
  bool is_silent() const { return silent_ != 0 && (!has(12) || rest_.size() == pause_); }

  const std::span<const std::byte> input_;
  std::span<const std::byte> rest_;
  uint16_t mode_ = 0;
  unsigned silent_ = 0;
  size_t pause_ = 0;  // bytes behind the middle; 0: no pause
  unsigned repetitions_ = 0;
  bool broke_ = false;
};

// Memory of 8 rows of 16 bytes with a pitch of 24, or of one long row, between guards.
class Destination {
 public:
  explicit Destination(bool one_row) : one_row_(one_row) {}
  client::Transfer transfer(bool bulk) {
    client::Transfer made{memory_.data() + kBeside,
                          one_row_ ? kLong : 24,
                          one_row_ ? kLong : 16,
                          one_row_ ? 1u : 8u,
                          bulk,
                          bulk};
    made.missing = bulk ? made.width * made.rows : 0;
    return made;
  }
  void check() const {
    const auto is_guard = [](const std::byte* first, size_t bytes) {
      return std::all_of(first, first + bytes, [](std::byte byte) { return byte == kGuard; });
    };
    const std::byte* const data = memory_.data();
    require(is_guard(data, kBeside) && is_guard(data + memory_.size() - kBeside, kBeside));
    for (size_t row = 0; !one_row_ && row < 8; ++row) require(is_guard(data + kBeside + row * 24 + 16, 8));
  }

 private:
  static constexpr size_t kBeside = 64, kLong = 40'000;
  const bool one_row_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(2 * kBeside + (one_row_ ? kLong : 8 * 24), kGuard);
};

// As the threads of bulk connections do when a piece arrives.
void receive_bulk_piece(client::Receiver& receiver) {
  require(!receiver.begin_piece(2, 1) && !receiver.begin_piece(1, 0));
  const auto transfer = receiver.begin_piece(2, 0);
  if (transfer) receiver.end_piece(2, transfer->piece_at(0));
}

void play(Server& connection) {
  bool failed = false;
  client::QuotaRefusals refusals;
  client::Receiver receiver(
      connection, connection.timeout(),
      {.ping = [] {},
       .host_callback = [](uint64_t, uint64_t, CUresult) {},
       .retired = [](uint64_t) {},
       .failed = [&](const Error&) { failed = true; },
       .quota_refused =
           [&](std::span<const std::byte> refusal) { return refusals.note(refusal, "tcp://127.0.0.1:9700"); },
       .received = [] {},
       .acknowledged = [](uint32_t position) { require(position != 0); }});
  Destination destination(connection.one_row());
  client::trace::enabled = connection.traces();
  receiver.expect_transfer(2, destination.transfer(connection.bulk()));
  client::Waiter first, second;
  first.sequence = 1;
  second.sequence = 2;
  receiver.expect(first);
  receiver.expect(second);
  if (connection.bulk()) receive_bulk_piece(receiver);
  if (connection.reads_first()) receiver.read_some();
  if (connection.sends_first()) static_cast<void>(receiver.wait_for_room(transport::Clock::now()));
  static_cast<void>(receiver.awaits_data_in(&destination, 1));
  const bool got_first = receiver.wait(first);
  const bool got_second = got_first && receiver.wait(second);
  require(got_second || failed);
  destination.check();
  if (failed) {
    // Nothing waits any more.
    bool answered = false;
    receiver.expect(3, [&](CUresult result) { answered = result == CUDA_ERROR_DEVICE_UNAVAILABLE; });
    receiver.expect(first);
    receiver.expect_transfer(2, destination.transfer(false));
    receiver.read_some();
    require(answered && first.done && !receiver.wait_for_room(transport::Clock::now()));
  }
  if (connection.resumes()) refusals.forget();
  refusals.print();
  refusals.forget();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Device output goes there.
  static const auto* const output = std::freopen("/dev/null", "w", stdout);
  require(output != nullptr);
  Server connection({reinterpret_cast<const std::byte*>(data), size});
  play(connection);
  return 0;
}
