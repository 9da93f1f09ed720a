#include "server/worker/checkpoint/checkpoint.h"

#include <time.h>

#include <utility>

#include "common/log/log.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

using namespace std::chrono_literals;
using server::ControlKind;
using wire::CheckpointAction;

// Polling interval, because the device does not signal that a stream is done.
constexpr timespec kLockPollInterval{0, 1'000'000};
constexpr std::chrono::microseconds kPollUntilLockable{10'000};
constexpr const char* kShared = "memory shared with other programs";
// Interval of checks for the end of the connection and for other messages of poold.
constexpr auto kCheckLockedEvery = 100ms;

}  // namespace

void Checkpoint::begin() {
  if (!session_.start.control) return;
  session_.start.control->handle(ControlKind::change_state, [this](const server::ControlMessage& message) {
    const auto said = message.body<server::packet::ChangeState>();
    {
      const std::lock_guard lock(mutex_);
      question_ = {said.question, said.action, said.host_bytes};
      if (said.action == CheckpointAction::lock) wanted_.store(true, std::memory_order_release);
    }
    asked_.notify_one();
    session_.start.connection->interrupt();
  });
  // Handled on the control thread, since the executor may be busy for long.
  session_.start.control->handle(ControlKind::stop_locking, [this](const server::ControlMessage& message) {
    const std::lock_guard lock(mutex_);
    if (!question_ || question_->number != message.body<server::packet::StopLocking>().question ||
        question_->action != CheckpointAction::lock)
      return;
    answer(CUDA_ERROR_NOT_READY);
    wanted_.store(false, std::memory_order_release);
  });
}

void Checkpoint::end() {
  if (!session_.start.control) return;
  for (const ControlKind kind : {ControlKind::change_state, ControlKind::stop_locking})
    session_.start.control->handle(kind, nullptr);
}

// poold sends no further request before this answer. A failed send means that poold does not read, or is
// gone.
void Checkpoint::answer(CUresult result) {
  const server::packet::StateChanged changed{.question = question_->number, .result = result};
  question_.reset();
  if (!session_.start.control->send<ControlKind::state_changed>(changed))
    session_.outbox.end("poold does not read its control socket");
}

std::optional<std::chrono::microseconds> Checkpoint::before_sleep() {
  if (!wanted_.load(std::memory_order_acquire)) return std::nullopt;
  if (session_.moves.has_work()) return kPollUntilLockable;
  remain_locked();
  return std::chrono::microseconds(0);
}

bool Checkpoint::wait_until_lockable(uint16_t id) {
  const Waiting waiting("running work to end, to lock the session");
  while (wanted_.load(std::memory_order_acquire)) {
    if (session_.outbox.over()) return false;
    if (!session_.moves.has_work()) {
      remain_locked();
      break;
    }
    // The command may be what ends the work: the answer of a host function, or the resumption of a held
    // stream.
    if (must_not_wait(id) || session_.gates.any_by_number()) break;
    if (!session_.executor.settle()) return false;
    ::nanosleep(&kLockPollInterval, nullptr);
  }
  return !session_.outbox.over();
}

void Checkpoint::remain_locked() {
  const Waiting waiting("poold to unlock the session");
  std::unique_lock lock(mutex_);
  if (!wanted_.load(std::memory_order_relaxed) || !question_) return;  // the request was withdrawn
  answer(CUDA_SUCCESS);
  while (wanted_.load(std::memory_order_relaxed)) {
    const bool asked = asked_.wait_for(lock, kCheckLockedEvery, [this] { return question_.has_value(); });
    if (session_.outbox.over()) return;
    const auto question = question_;
    lock.unlock();
    const CUresult result = asked ? change(*question) : CUDA_SUCCESS;
    if (!asked) session_.moves.before_sleep();
    lock.lock();
    if (!asked) continue;
    if (question->action == CheckpointAction::unlock) wanted_.store(false, std::memory_order_release);
    answer(result);
  }
}

CUresult Checkpoint::change(const Question& question) {
  switch (question.action) {
    case CheckpointAction::checkpoint: return take_checkpoint(question.host_bytes);
    case CheckpointAction::restore: return session_.checkpoint_image.restore();
    case CheckpointAction::unlock: return CUDA_SUCCESS;
    default: return CUDA_ERROR_ILLEGAL_STATE;
  }
}

CUresult Checkpoint::take_checkpoint(uint64_t host_bytes) {
  const char* obstacle = session_.virtual_memory.has_multicasts() ? "a multicast object"
                         : session_.virtual_memory.shares()       ? kShared
                         : session_.graphs.names_array()          ? "a graph that copies from or to an array"
                                                                  : session_.arrays.checkpoint_obstacle();
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (!obstacle) {
    CheckpointImage::Pieces pieces;
    session_.arrays.add_pieces(pieces, session_.table);
    session_.virtual_memory.add_pieces(pieces);
    session_.memory.add_pieces(pieces);
    result = session_.checkpoint_image.save_and_free(std::move(pieces), host_bytes);
    if (result == CUDA_ERROR_NOT_PERMITTED) obstacle = kShared, result = CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!obstacle) return result;
  const std::string reason = std::string("the session has ") + obstacle +
                             ", which cannot leave the GPU; free or destroy it before the checkpoint";
  log::warning("session_cannot_be_checkpointed", {{"reason", reason}});
  return result;
}

}  // namespace gpupool::worker
