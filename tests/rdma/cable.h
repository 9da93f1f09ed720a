// The cable between the two devices of the guest (tests/softroce/), and what can go wrong with it. Any
// failure of the helpers themselves is an exception.
#pragma once
#include <map>
#include <string>

namespace gpupool::testing {

// The addresses of its two ends, and their devices'.
inline constexpr const char* kNear = "10.77.0.1";  // rxe0, veth0
inline constexpr const char* kFar = "10.77.0.2";   // rxe1, veth1

// Both directions treat packets as these words of `tc qdisc add ... netem` say, e.g. "loss 1%".
class BadCable {
 public:
  explicit BadCable(const std::string& netem);
  ~BadCable();
  BadCable(const BadCable&) = delete;
  BadCable& operator=(const BadCable&) = delete;
};

// Pulled out at its far end, so that both have no link; plugged in again by the destructor, or before.
class PulledCable {
 public:
  PulledCable();
  ~PulledCable();
  PulledCable(const PulledCable&) = delete;
  PulledCable& operator=(const PulledCable&) = delete;
  void plug_in();

 private:
  bool out_ = true;
};

// What the kernel holds for all processes, by kind: "qp", "cq", "mr", "pd", ... of both devices together.
std::map<std::string, int> kernel_objects();

}  // namespace gpupool::testing
