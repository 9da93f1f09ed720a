// The part of Receiver for threads that wait for no reply: they read what is there, or wait for what a
// message changes.
#include <utility>

#include "client/session/receiver.h"

namespace gpupool::client {

using transport::Clock;

void Receiver::read_some() {
  {
    const Lock lock(mutex_);
    if (failed_ || std::exchange(pumping_, true)) return;
  }
  for (unsigned reads = 0; reads < kMostReads; ++reads) {
    const auto before = last_received_;
    if (!receive_some() || !parse() || last_received_ == before) break;
  }
  release_role();
}

bool Receiver::await(const std::function<bool()>& done, Clock::time_point deadline) {
  Lock lock(mutex_);
  ++interest_;
  start_background();
  changed_.wait_until(lock, deadline, [&] { return failed_ || done(); });
  --interest_;
  return done();
}

void Receiver::wake() {
  const Lock lock(mutex_);
  changed_.notify_all();
}

}  // namespace gpupool::client
