// Usage of the pool over the last hour, one point every ten seconds, for the web page. In memory only. The
// engine's thread.
#pragma once
#include <cstdint>
#include <deque>

namespace gpupool::pool {

class History {
 public:
  static constexpr int64_t kIntervalMs = 10'000, kKeptMs = 3'600'000;
  struct Point {
    int64_t at_ms;
    uint64_t compute_milli_leased, compute_milli;
    uint32_t waiting;
  };
  // Ignores points less than kIntervalMs after the last one.
  void note(const Point& point) {
    if (!points_.empty() && point.at_ms < points_.back().at_ms + kIntervalMs) return;
    points_.push_back(point);
    while (points_.front().at_ms < point.at_ms - kKeptMs) points_.pop_front();
  }
  const std::deque<Point>& points() const { return points_; }

 private:
  std::deque<Point> points_;
};

}  // namespace gpupool::pool
