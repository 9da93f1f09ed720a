// How often an address has shown what gives no access: some are answered, more are not. Who shows the right thing is never held up, so
// nobody can lock out others behind the same address. poold's one thread.
#pragma once
#include <chrono>
#include <map>
#include <string>

namespace gpupool::server {

class Denials {
 public:
  using Clock = std::chrono::steady_clock;

  // True: within bounds, so it is answered and logged. `address` may have a port, which does not count.
  bool note(const std::string& address, Clock::time_point now = Clock::now());

  static constexpr size_t kMostAddresses = 4096;
  size_t addresses() const { return by_address_.size(); }

 private:
  struct Allowance {
    double answers;
    Clock::time_point since;
  };
  std::map<std::string, Allowance> by_address_;
};

}  // namespace gpupool::server
