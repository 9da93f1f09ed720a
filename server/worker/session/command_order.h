// The streams and objects that a command depends on. They decide whether the command may be executed while
// earlier commands are in the backlog (backlog.h). Executor's thread.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "server/worker/session/contexts.h"
#include "server/worker/session/stream_gates.h"

namespace gpupool::worker {

class Graphs;
class HandleTable;
struct Command;

// The client's handles, and other numbers that identify objects. `full`: more keys were added than fit.
struct OrderKeys {
  std::array<uint64_t, 4> keys{};
  uint8_t count = 0;
  bool full = false;

  void add(uint64_t key) {
    if (count == keys.size())
      full = true;
    else
      keys[count++] = key;
  }
  const uint64_t* begin() const { return keys.data(); }
  const uint64_t* end() const { return keys.data() + count; }
};

struct CommandOrder {
  enum class Rule : uint8_t {
    at_once,         // does not depend on unfinished stream work
    in_order,        // after earlier commands in its stream and with its objects
    query,           // likewise, but answered with CUDA_ERROR_NOT_READY instead of being kept
    after_context,   // after all earlier work in the streams of `context`
    after_barriers,  // after earlier copies that order all streams
    // After all earlier commands, and before all later ones except `in_order` commands without objects.
    alone,
  };
  Rule rule = Rule::at_once;
  uint64_t sequence = 0;         // sequence number of the command
  bool gives_work = false;       // to `stream`; otherwise the command only waits for it
  bool for_all_streams = false;  // later work of any stream comes after this command
  StreamState* stream = nullptr;
  const ContextState* context = nullptr;
  OrderKeys reads, writes;
  // Memory that the command unmaps. It waits for copies that access the memory: correct programs order the
  // free behind them, but others must not make this process access unmapped addresses.
  MemoryRange frees;
};

// True for commands whose CUDA function returns before its work is done. A client in synchronous mode must
// not wait until a kept command leaves the backlog.
bool returns_early(uint16_t command);

// Returns the command's dependencies, and makes its context current. A malformed command may be executed at
// once: its handler ends the session.
CommandOrder order_of(Contexts& contexts, HandleTable& table, const Graphs& graphs, const Command& command);

}  // namespace gpupool::worker
