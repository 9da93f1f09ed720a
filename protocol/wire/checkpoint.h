// What a client whose Hello says `checkpoint` and poold send each other after the HelloReply: a Preamble, then one of these.
// A Preamble alone is poold's sign of life while the client waits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpupool::wire {

enum class CheckpointAction : uint32_t { find = 0, lock = 1, checkpoint = 2, restore = 3, unlock = 4 };
constexpr uint32_t kCheckpointActions = 5;

// The values of CUprocessState, which headers before CUDA 12.8 do not have.
enum class ProcessState : uint32_t { running = 0, locked = 1, checkpointed = 2, failed = 3 };

// The state in which an action is possible, and the one that it leads to.
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
  uint32_t timeout_ms = 0;  // lock; 0: none
  int64_t pid = 0;          // as the client's own system counts
  uint64_t session = 0;     // one that find has told of; of find: 0
};
static_assert(sizeof(CheckpointQuestion) == 24 && std::is_trivially_copyable_v<CheckpointQuestion>);

// `result` is a CUresult. Behind it, for find: the sessions of that process.
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
