// Throttles a client that sends commands faster than its streams execute them. The executor cannot just stop
// receiving, because the command that opens a gate may be behind. While the backlog exceeds half of its
// limit, each message carries wire::kSendAwaitRoom, and the client sends await_room before it gives a stream
// more work. A stream that waits for nothing has room at once; other streams have room when the backlog has
// shrunk. Executor's thread.
#pragma once
#include <cstdint>
#include <vector>

#include "protocol/wire/frame.h"

namespace gpupool::worker {

class Backlog;
class Contexts;
class HandleTable;
class Outbox;
struct Usage;

class BackPressure {
 public:
  BackPressure(const Usage& usage, Contexts& contexts, HandleTable& table, Backlog& backlog, Outbox& outbox)
      : usage_(usage), contexts_(contexts), table_(table), backlog_(backlog), outbox_(outbox) {}
  BackPressure(const BackPressure&) = delete;
  BackPressure& operator=(const BackPressure&) = delete;

  // Limit of the backlog's bytes while the executor must keep receiving. A client that sends await_room stays
  // below it.
  uint64_t limit() const;
  // Handles the command await_room: replies when the stream has room.
  void await_room(const wire::CommandHeader& command, uint64_t stream);
  // Call after the backlog or its gates have changed. Tells the client when the backlog becomes long or
  // short, and answers pending await_room commands whose streams have room now.
  void update();

 private:
  struct Asked {
    wire::CommandHeader command;
    uint64_t stream;
  };
  bool has_room(const Asked& asked) const;
  uint64_t high_mark() const;

  const Usage& usage_;
  Contexts& contexts_;
  HandleTable& table_;
  Backlog& backlog_;
  Outbox& outbox_;
  bool long_ = false;
  std::vector<Asked> asked_;
};

}  // namespace gpupool::worker
