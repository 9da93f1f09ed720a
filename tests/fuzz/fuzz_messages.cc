// Fuzzes the client's receiver with everything that a server may send after the hello, over a connection that
// replays the input. All waits must end, and nothing may be written outside a copy's destination.
#include <cstdlib>

#include "client/process/trace.h"
#include "client/session/quota_refusals.h"
#include "client/session/receiver.h"
#include "tests/fuzz/played_connection.h"

// Replaces client/process/trace.cc: traces nothing.
namespace gpupool::client::trace {
std::atomic<bool> enabled{false};
void count_received(uint16_t, size_t) {}
}  // namespace gpupool::client::trace

using namespace gpupool;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::PlayedConnection connection({reinterpret_cast<const std::byte*>(data), size}, false);
  bool failed = false;
  client::QuotaRefusals refusals;
  client::Receiver receiver(connection, std::chrono::milliseconds(1000),
                            {.ping = [] {},
                             .host_callback = [](uint64_t, uint64_t, CUresult) {},
                             .retired = [](uint64_t) {},
                             .failed = [&](const Error&) { failed = true; },
                             .quota_refused =
                                 [&](std::span<const std::byte> refusal) {
                                   return refusals.note(refusal, "tcp://127.0.0.1:9700");
                                 }});
  constexpr std::byte kGuard{0x5c};
  // 8 rows of 16 bytes with a pitch of 24, between guards.
  std::vector<std::byte> memory(64 + 8 * 24 + 64, kGuard);
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
