#include "server/worker/sharing/peer_requests.h"

#include <unistd.h>

#include <utility>

#include "server/worker/session/thread_activity.h"

namespace gpupool::worker {

using server::ControlKind;

PeerRequests::PeerRequests(Control* control, std::chrono::milliseconds patience)
    : control_(control), patience_(patience) {
  if (!control_) return;
  for (const ControlKind kind : {ControlKind::peer_found, ControlKind::peer_missing}) {
    control_->handle(kind, [this](const server::ControlMessage& message) { answered(message); });
  }
}

PeerRequests::~PeerRequests() {
  if (!control_) return;
  for (const ControlKind kind : {ControlKind::peer_found, ControlKind::peer_missing})
    control_->handle(kind, nullptr);
}

void PeerRequests::answered(const server::ControlMessage& message) {
  const std::lock_guard lock(mutex_);
  const auto asked = waiting_.find(message.body<server::packet::PeerAnswer>().request);
  if (asked == waiting_.end() || asked->second || stopped_) {  // the request has timed out or was stopped
    if (message.descriptor >= 0) ::close(message.descriptor);
    return;
  }
  asked->second = {message.descriptor, server::parse_peer_protection(message.payload)};
  changed_.notify_all();
}

PeerRequests::Answer PeerRequests::ask(const wire::PeerTarget& target) {
  if (!control_) return {};
  std::unique_lock lock(mutex_);
  if (stopped_) return {};
  const uint64_t request = ++last_request_;
  std::optional<Answer>& answer = waiting_[request];
  const Waiting waiting("a connection to another server");
  if (control_->send<ControlKind::peer_wanted>({.request = request, .target = target})) {
    changed_.wait_for(lock, patience_, [&] { return answer || stopped_; });
  }
  Answer answered = std::move(answer).value_or(Answer{});
  waiting_.erase(request);
  return answered;
}

void PeerRequests::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace gpupool::worker
