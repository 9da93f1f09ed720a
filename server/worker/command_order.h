// Which streams and objects a command depends on: decides whether it may be executed while commands before it are in the backlog (backlog.h).
// Executor's thread.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "server/worker/contexts.h"

namespace gpupool::worker {

class Executor;
struct Command;

// Client's handles, and other numbers that stand for objects. `full`: there were more than fit.
struct OrderKeys {
  std::array<uint64_t, 4> keys{};
  uint8_t count = 0;
  bool full = false;

  void add(uint64_t key) {
    if (count == keys.size()) full = true;
    else keys[count++] = key;
  }
  const uint64_t* begin() const { return keys.data(); }
  const uint64_t* end() const { return keys.data() + count; }
};

struct CommandOrder {
  enum class Rule : uint8_t {
    at_once,        // depends on nothing that a stream has still to do
    in_order,       // after what is before it in its stream, and before it with its objects
    query,          // likewise, but answered with CUDA_ERROR_NOT_READY instead of being kept
    after_context,  // after everything before it in the streams of `context`
    after_barriers, // after what all streams are to wait for
    alone,          // after everything before it, and before all commands but `in_order` ones that name no object
  };
  Rule rule = Rule::at_once;
  uint64_t sequence = 0;         // the command's
  bool gives_work = false;       // to `stream`; otherwise the command only waits for it
  bool for_all_streams = false;  // work that any stream gets later comes after this command
  StreamState* stream = nullptr;
  const ContextState* context = nullptr;
  OrderKeys reads, writes;
};

// CUDA's function returns before its work is done: a client that waits for every call must not wait for as long as the command is kept.
bool returns_early(uint16_t command);

// Makes the command's context current. Malformed commands may be executed at once: their handler ends the session.
CommandOrder order_of(Executor& session, const Command& command);

}  // namespace gpupool::worker
