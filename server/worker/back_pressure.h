// Keeps a client from sending commands faster than its streams take them, where the executor cannot just stop receiving: what opens a gate may
// come behind. Beyond half of the backlog's limit each message says so (wire::kBacklogLong), and the client asks with await_room before it gives
// a stream work. A stream that waits for nothing has room at once; others when the backlog is short again. Executor's thread.
#pragma once
#include <cstdint>
#include <vector>

#include "protocol/wire/frame.h"

namespace gpupool::worker {

class Executor;

class BackPressure {
 public:
  explicit BackPressure(Executor& session) : session_(session) {}
  BackPressure(const BackPressure&) = delete;
  BackPressure& operator=(const BackPressure&) = delete;

  // Bytes that the backlog may have while the client has to be heard. A client that asks stays below them.
  uint64_t limit() const;
  // await_room: answered when the stream has room.
  void await_room(const wire::CommandHeader& command, uint64_t stream);
  // After the backlog or its gates have changed: tells the client, and answers what has room now.
  void update();

 private:
  struct Asked {
    wire::CommandHeader command;
    uint64_t stream;
  };
  bool has_room(const Asked& asked) const;
  uint64_t high_mark() const;

  Executor& session_;
  bool long_ = false;
  std::vector<Asked> asked_;
};

}  // namespace gpupool::worker
