// Messages of a checkpoint connection (Hello.checkpoint) after the HelloReply: a Preamble, then one of these
// structs. The client library asks, poold answers. While the client waits, poold sends Preambles with length
// 0 to show that it is alive.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpupool::wire {

enum class CheckpointAction : uint32_t { find = 0, lock = 1, checkpoint = 2, restore = 3, unlock = 4 };
constexpr uint32_t kCheckpointActions = 5;

// The values of CUprocessState, which cuda.h lacks before CUDA 12.8.
enum class ProcessState : uint32_t { running = 0, locked = 1, checkpointed = 2, failed = 3 };

// The state in which an action is possible, and the state after it.
constexpr ProcessState state_before(CheckpointAction action) {
  if (action == CheckpointAction::lock) return ProcessState::running;
  return action == CheckpointAction::restore ? ProcessState::checkpointed : ProcessState::locked;
}
constexpr ProcessState state_after(CheckpointAction action) {
  if (action == CheckpointAction::unlock) return ProcessState::running;
  return action == CheckpointAction::checkpoint ? ProcessState::checkpointed : ProcessState::locked;
}

struct CheckpointQuestion {
  CheckpointAction action = CheckpointAction::find;
  uint32_t timeout_ms = 0;  // of lock; 0: no limit
  int64_t pid = 0;          // in the client's PID namespace
  uint64_t session = 0;     // as returned by find; 0 for find itself
};
static_assert(sizeof(CheckpointQuestion) == 24 && std::is_trivially_copyable_v<CheckpointQuestion>);

// `result` is a CUresult. For find, `sessions` times a ProcessSession follow: the sessions of the process.
struct CheckpointAnswer {
  int32_t result = 0;
  uint32_t sessions = 0;
};
struct ProcessSession {
  uint64_t session = 0;
  ProcessState state = ProcessState::running;
  uint32_t reserved = 0;
};
static_assert(sizeof(CheckpointAnswer) == 8 && sizeof(ProcessSession) == 16);
constexpr size_t kMostProcessSessions = 1024;

}  // namespace gpupool::wire
