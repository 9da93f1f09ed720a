#include "server/worker/session/control.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

namespace gpupool::worker {
namespace {

constexpr size_t kMaxEarly = 64;

void drop(const server::ControlMessage& message) {
  if (message.descriptor >= 0) ::close(message.descriptor);
}

}  // namespace

Control::Control(int socket, std::function<void()> poold_gone)
    : socket_(socket),
      poold_gone_(std::move(poold_gone)),
      ended_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { run(); }) {}

Control::~Control() {
  {
    const std::lock_guard lock(mutex_);
    destroyed_ = true;
  }
  ::shutdown(socket_, SHUT_RDWR);
  thread_.join();
  for (const auto& message : early_) drop(message);
  ::close(ended_);
}

void Control::handle(server::ControlKind kind, Handler handler) {
  const std::lock_guard lock(mutex_);
  std::vector<server::ControlMessage> others;
  for (auto& message : early_) {
    if (message.kind != kind)
      others.push_back(std::move(message));
    else if (handler)
      handler(std::move(message));
    else
      drop(message);
  }
  early_ = std::move(others);
  handlers_[kind] = std::move(handler);
}

void Control::dispatch(server::ControlMessage message) {
  const std::lock_guard lock(mutex_);
  const auto found = handlers_.find(message.kind);
  if (found == handlers_.end() && early_.size() < kMaxEarly)
    early_.push_back(std::move(message));
  else if (found == handlers_.end() || !found->second)
    drop(message);
  else
    found->second(std::move(message));
}

// A malformed message ends the loop too: poold is of the same build, so another process must be writing to
// the socket.
void Control::run() {
  while (true) {
    auto message = server::receive_control(socket_);
    if (!message) break;
    dispatch(std::move(*message));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(ended_, &one, sizeof one);
  {
    const std::lock_guard lock(mutex_);
    if (destroyed_) return;
  }
  if (poold_gone_) poold_gone_();
}

}  // namespace gpupool::worker
