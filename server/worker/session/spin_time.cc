#include "server/worker/session/spin_time.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <thread>

namespace gpupool::worker {
namespace {

constexpr std::chrono::seconds kCountEvery{1};
// Upper limit of a learned duration, so that a single long wait is soon outweighed by short ones.
constexpr std::chrono::milliseconds kLongest{1};

}  // namespace

int SpinTime::free_cores() {
  double load = 0;
  if (::getloadavg(&load, 1) != 1) return 0;
  return static_cast<int>(std::thread::hardware_concurrency()) - static_cast<int>(std::ceil(load));
}

SpinTime::Microseconds SpinTime::limit() {
  const auto mean = std::chrono::duration_cast<Microseconds>(
      std::chrono::nanoseconds(mean_.load(std::memory_order_relaxed)));
  if (mean > kMost) return kShortSpin;
  if (const auto now = Clock::now(); counted_ == Clock::time_point{} || now - counted_ > kCountEvery) {
    counted_ = now;
    cores_are_free_ = count_free_() >= kFreeCores;
  }
  return cores_are_free_ ? std::clamp(mean * 3 / 2, kLeast, kMost) : kShortSpin;
}

void SpinTime::note_wait(Clock::duration time) {
  const int64_t mean = mean_.load(std::memory_order_relaxed);
  const int64_t nanoseconds = std::min<std::chrono::nanoseconds>(time, kLongest).count();
  mean_.store(mean + (nanoseconds - mean) / 8, std::memory_order_relaxed);  // a lost update is harmless
}

}  // namespace gpupool::worker
