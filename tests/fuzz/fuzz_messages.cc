// Everything that a server may send to the client library after the hello: the client's receiver over a connection that
// plays the input. Whatever comes, waits end, and nothing is written outside the destination of a copy.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "client/receiver.h"
#include "client/trace.h"

// The receiver alone: nothing is traced.
namespace gpupool::client::trace {
std::atomic<bool> enabled{false};
void count_received(uint16_t, size_t) {}
}  // namespace gpupool::client::trace

namespace {

using namespace gpupool;

class PlayedConnection final : public transport::Connection {
 public:
  explicit PlayedConnection(std::span<const std::byte> input) : rest_(input) {}
  Result<size_t> send_some(std::span<const iovec>) override { return size_t{0}; }
  Result<size_t> receive_some(std::span<std::byte> buffer) override {
    if (rest_.empty()) return Error{ErrorCode::closed, "the input is over"};
    const size_t count = std::min({buffer.size(), rest_.size(), size_t{1000}});
    std::memcpy(buffer.data(), rest_.data(), count);
    rest_ = rest_.subspan(count);
    return count;
  }
  Result<Ready> wait(bool, bool, transport::Deadline) override { return Ready::receive; }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "the fuzzer"; }
  int release_descriptor() override { return -1; }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  PlayedConnection connection({reinterpret_cast<const std::byte*>(data), size});
  bool failed = false;
  client::Receiver receiver(connection, std::chrono::milliseconds(1000),
                            {.ping = [] {}, .host_callback = [](uint64_t, uint64_t, CUresult) {}, .retired = [](uint64_t) {},
                             .failed = [&](const Error&) { failed = true; }});
  constexpr std::byte kGuard{0x5c};
  std::vector<std::byte> memory(64 + 8 * 24 + 64, kGuard);  // 8 rows of 16 bytes, 24 apart, between guards
  receiver.expect_transfer(2, {memory.data() + 64, 24, 16, 8, false});
  client::Waiter first, second;
  first.sequence = 1;
  second.sequence = 2;
  receiver.expect(first);
  receiver.expect(second);
  const bool got_first = receiver.wait(first);
  const bool got_second = got_first && receiver.wait(second);
  if (!got_second && !failed) std::abort();
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool inside = i >= 64 && i < 64 + 8 * 24 && (i - 64) % 24 < 16;
    if (!inside && memory[i] != kGuard) std::abort();
  }
  return 0;
}
