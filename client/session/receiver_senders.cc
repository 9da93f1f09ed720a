// The part of Receiver for senders, which wait for room and read meanwhile.
#include <algorithm>
#include <utility>

#include "client/session/receiver.h"

namespace gpupool::client {
namespace {

using transport::Clock;
using transport::Connection;

// How often a thread that waits for room checks whether another thread still reads. If no thread reads, the
// server may be unable to send and stop reading, and room never comes.
constexpr Clock::duration kLookForRole = std::chrono::milliseconds(50);

}  // namespace

bool Receiver::wait_for_room(Clock::time_point deadline) {
  bool pumping = false;
  Result<Connection::Ready> ready = Connection::Ready::none;
  // The time is counted, because a connection that breaks moves the deadlines of its waits.
  for (auto left = deadline - Clock::now();; left -= kLookForRole) {
    {
      Lock lock(mutex_);
      if (failed_) return false;
      if (!pumping_) pumping = pumping_ = true;
    }
    const bool last = pumping || left <= kLookForRole;
    ready = connection_.wait(pumping, true, Clock::now() + (last ? left : kLookForRole));
    if (last || !ready || *ready != Connection::Ready::none) break;
  }
  bool good = ready.ok();
  if (!good) report(ready.error().code, ready.error().message);
  if (pumping) {
    if (good && (*ready == Connection::Ready::receive || *ready == Connection::Ready::both)) {
      good = receive_some() && parse();
    }
    release_role();
  }
  return good && !(ready.ok() && *ready == Connection::Ready::none);
}

}  // namespace gpupool::client
