// The commands that the source of a migration sends to the target, on a connection between two workers
// (protocol/wire/migration.h). The receiver trusts nothing: the commands go through the session's ordinary
// handlers. Any thread, one at a time.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/transport/transport.h"
#include "protocol/wire/migration.h"

namespace gpupool::worker {

class CommandSender {
 public:
  // `silent`: the longest time without progress.
  CommandSender(transport::Connection& connection, transport::Clock::duration silent)
      : connection_(connection), silent_(silent) {}

  // When everything must have been sent, whatever progress there is.
  void set_deadline(transport::Deadline deadline) { deadline_ = deadline; }
  // `expected`: the reply that the command must have, if `checks`.
  Result<void> send(wire::CommandHeader header, std::span<const std::byte> body,
                    std::span<const std::byte> more = {}, std::span<const std::byte> expected = {},
                    bool checks = false);
  // True if sending failed because the target has answered already: one of the commands has failed.
  bool answered() const { return answered_; }
  uint64_t sent() const { return sent_; }  // bytes

 private:
  Result<void> wait_for_room();

  transport::Connection& connection_;
  const transport::Clock::duration silent_;
  transport::Deadline deadline_;
  uint64_t sent_ = 0;
  bool answered_ = false;
};

class CommandReceiver {
 public:
  explicit CommandReceiver(transport::Connection& connection) : connection_(connection) {}

  struct Received {
    wire::CommandHeader header;
    std::span<const std::byte> body, expected;  // valid until the next call
    bool checks = false;
  };
  Result<Received> next(transport::Deadline deadline);

 private:
  transport::Connection& connection_;
  std::vector<std::byte> buffer_;
};

// The name of a CUresult, or its number.
std::string error_text(int32_t result);

// The target's answer to the source, after the last command: CUDA_SUCCESS, or an error and the reason.
Result<void> send_answer(transport::Connection& connection, int32_t result, std::string_view reason,
                         transport::Deadline deadline);
struct Answer {
  int32_t result;
  std::string reason;
};
Result<Answer> receive_answer(transport::Connection& connection, transport::Deadline deadline);

}  // namespace gpupool::worker
