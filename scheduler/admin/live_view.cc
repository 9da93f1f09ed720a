#include "scheduler/admin/live_view.h"

#include <sys/signalfd.h>

namespace gpupool::admin {

bool handle_key(int& keys) {
  std::array<char, 64> pressed;
  const ssize_t count = ::read(keys, pressed.data(), pressed.size());
  if (count <= 0) keys = -1;  // poll() ignores negative descriptors
  for (ssize_t i = 0; i < count; ++i) {
    if (pressed[static_cast<size_t>(i)] == 'q' || pressed[static_cast<size_t>(i)] == 'Q') return false;
  }
  return true;
}

TopSignals::TopSignals() {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH}) ::sigaddset(&wanted, signal);
  ::pthread_sigmask(SIG_BLOCK, &wanted, nullptr);
  descriptor_ = ::signalfd(-1, &wanted, SFD_CLOEXEC);
}

TopSignals::~TopSignals() {
  ::close(descriptor_);
}

int TopSignals::next() const {
  signalfd_siginfo info{};
  return ::read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

bool TopSignals::wait_for_end(std::chrono::milliseconds timeout) const {
  pollfd polled{descriptor_, POLLIN, 0};
  while (::poll(&polled, 1, static_cast<int>(timeout.count())) > 0) {
    if (next() != SIGWINCH) return true;
  }
  return false;
}

}  // namespace gpupool::admin
