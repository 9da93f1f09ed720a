// The cable between the two RDMA devices of the guest (tests/softroce/) and its faults. The functions throw
// if a command fails.
#pragma once
#include <map>
#include <string>

namespace gpupool::testing {

// IP addresses of the two ends of the cable
inline constexpr const char* kNear = "10.77.0.1";  // rxe0, veth0
inline constexpr const char* kFar = "10.77.0.2";   // rxe1, veth1

// Applies the arguments of `tc qdisc add ... netem`, e.g. "loss 1%", to packets in both directions.
class BadCable {
 public:
  explicit BadCable(const std::string& netem);
  ~BadCable();
  BadCable(const BadCable&) = delete;
  BadCable& operator=(const BadCable&) = delete;
};

// Disconnects the far end, so that neither end has a link. The destructor or plug_in() reconnects it.
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

// Number of kernel objects of all processes by kind ("qp", "cq", "mr", "pd", ...), for both devices together.
std::map<std::string, int> kernel_objects();

}  // namespace gpupool::testing
