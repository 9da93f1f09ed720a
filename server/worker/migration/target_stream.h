// The source's commands on their way to the target. The executor adds commands while another thread sends
// them; memory is sent at once, behind what has been added before.
//
// add() and close(): any thread. The rest: one thread at a time. After close() nothing is added any more.
#pragma once
#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "protocol/transport/transport.h"
#include "protocol/wire/commands.h"
#include "server/worker/migration/command_stream.h"
#include "server/worker/migration/history.h"

namespace gpupool::worker {

struct OutgoingCommand {
  wire::CommandHeader header;  // without sequence number
  std::vector<std::byte> body, expected = {};
  bool checks = false;                          // the reply must be `expected`
  std::shared_ptr<const KeptImage> image = {};  // of a command that loads or links it
};

class TargetStream {
 public:
  // `sent_bytes`: where to count, for monitoring. `to_file`: the target is poold, which writes a file.
  explicit TargetStream(std::atomic<uint64_t>& sent_bytes, bool to_file = false)
      : sent_bytes_(sent_bytes), to_file_(to_file) {}
  ~TargetStream() { sent_bytes_.store(0, std::memory_order_relaxed); }
  TargetStream(const TargetStream&) = delete;
  TargetStream& operator=(const TargetStream&) = delete;

  // `counts`: what is added while the program runs is limited; what it has already made is not.
  void add(OutgoingCommand command, bool counts = true);
  // Ends the connection, and what waits for it.
  void close();

  // Gives the connection over which everything is sent. Call first, once.
  void take(std::unique_ptr<transport::Connection> connection);
  // When sending and the answer must be over, whatever progress there is.
  void set_deadline(transport::Deadline deadline) { sender_->set_deadline(deadline_ = deadline); }
  // Sends what was added until now, at most `most` commands of it. A program may add commands faster than the
  // target executes them, so those that are added meanwhile are left for the next call.
  Result<void> send_added(size_t most = ~size_t{0});
  Result<void> send(wire::Command id, uint64_t context, std::span<const std::byte> body,
                    std::span<const std::byte> more = {});
  template <class Body>
    requires std::is_trivially_copyable_v<Body>
  Result<void> send(wire::Command id, uint64_t context, const Body& body,
                    std::span<const std::byte> more = {}) {
    return send(id, context, std::as_bytes(std::span(&body, 1)), more);
  }
  // Sends the last command, and waits for the target's answer.
  Result<void> finish(const wire::EndMigration& end);
  uint64_t sent() const { return sender_ ? sender_->sent() : 0; }  // bytes

 private:
  Result<void> send(const OutgoingCommand& command);
  // Sends a command with an image, whatever way that came here, behind an upload of it.
  Result<void> send_load(const OutgoingCommand& command);
  Result<void> send(wire::CommandHeader header, std::span<const std::byte> body,
                    std::span<const std::byte> more, std::span<const std::byte> expected, bool checks);
  // Once sending has failed: the target's reason, if it has given one.
  Error explain(const Error& error);
  transport::Deadline answer_by() const;
  Error from_target(ErrorCode code, const std::string& reason) const;

  std::atomic<uint64_t>& sent_bytes_;
  const bool to_file_;
  std::unique_ptr<CommandSender> sender_;
  transport::Deadline deadline_;
  uint32_t uploads_ = 0;
  std::mutex mutex_;                                   // guards the rest
  std::unique_ptr<transport::Connection> connection_;  // changed by take() alone
  struct Added {
    OutgoingCommand command;
    uint64_t bytes;  // 0: does not count
  };
  std::deque<Added> added_;
  uint64_t added_bytes_ = 0;  // of commands that count
  bool closed_ = false, too_much_ = false;
};

}  // namespace gpupool::worker
