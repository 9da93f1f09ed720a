// The offset of a server's monotonic clock from this host's, from round trips: the server has read its clock
// between the sending of the question and the arrival of the answer. One thread at a time.
#pragma once
#include <cstdint>

namespace gpupool::client::timeline {

// All times in nanoseconds.
class ClockAlignment {
 public:
  // A round trip: times of this host's clock, and in between times of the server's. Ignores impossible ones.
  void add(int64_t sent, int64_t server_received, int64_t server_sent, int64_t received);
  // The server's clock is another one, for example that of another server.
  void restart() { *this = {}; }

  bool known() const { return readings_ != 0; }
  // Returns the time of this host's clock. known() must be true.
  int64_t to_local(int64_t server_time) const { return server_time - offset_; }
  int64_t offset() const { return offset_; }  // server's time - local time
  // Bound of the error of to_local() now, if the two clocks drift apart by at most kMostDrift.
  int64_t error(int64_t now) const;

 private:
  // Largest relative drift between two quartz clocks, one of which NTP may be adjusting.
  static constexpr double kMostDrift = 200e-6;
  // The offset follows the first readings; later it changes only if it has become impossible, so that spans
  // that were converted at different times do not overlap.
  static constexpr int kFirstReadings = 8;

  int64_t drift_since(int64_t then, int64_t now) const;

  int readings_ = 0;
  int64_t offset_ = 0;
  int64_t least_ = 0, most_ = 0;  // bounds of the offset at read_at_
  int64_t read_at_ = 0;
};

}  // namespace gpupool::client::timeline
