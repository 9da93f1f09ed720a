#include "server/worker/memory/reclaimer.h"

#include "server/worker/session/outbox.h"
#include "server/worker/session/thread_activity.h"

namespace gpupool::worker {
namespace {

// poold gives a session 3 s to end before it kills its worker.
constexpr std::chrono::milliseconds kLongestEnd{5000};
constexpr std::chrono::milliseconds kLookWhetherOver{50};  // whether this session is over
// A session that was abandoned before this one started has ended by itself after this time.
constexpr std::chrono::seconds kYoung{10};

}  // namespace

Reclaimer::Reclaimer(Control* control, const Outbox& outbox) : control_(control), outbox_(outbox) {
  if (!control_) return;
  control_->handle(server::ControlKind::reclaimed, [this](const server::ControlMessage& message) {
    {
      const std::lock_guard lock(mutex_);
      answer_ = message.body<server::packet::Reclaimed>();
    }
    changed_.notify_all();
  });
}

Reclaimer::~Reclaimer() {
  if (control_) control_->handle(server::ControlKind::reclaimed, nullptr);
}

bool Reclaimer::reclaim(int gpu, Reason reason) {
  if (!control_) return false;
  const Waiting waiting("the end of a session whose client is gone");
  std::unique_lock lock(mutex_);
  // poold takes one question at a time.
  if (answer_.question != question_) return false;
  const server::packet::Reclaim wanted{.question = question_ + 1, .gpu = gpu, .reason = reason};
  if (!control_->send<server::ControlKind::reclaim>(wanted)) return false;
  ++question_;
  const auto stop = Clock::now() + kLongestEnd;
  while (answer_.question != question_ && !outbox_.over() && Clock::now() < stop)
    changed_.wait_for(lock, kLookWhetherOver);
  return answer_.question == question_ && answer_.sessions != 0;
}

void Reclaimer::before_report(int gpu) {
  if (Clock::now() - started_ > kYoung) return;
  while (reclaim(gpu, Reason::report)) {
  }
}

}  // namespace gpupool::worker
