// A network of simulated machines for the chaos test. Everything is in namespaces of this process: it is
// invisible outside, addresses cannot collide, and it ends with this process. Needs root and iproute2. One
// thread. Failures are exceptions.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tests/support/processes.h"

namespace gpupool::testing {

// A process on a machine.
struct Running {
  pid_t pid;    // in this process's namespace
  pid_t inner;  // in the machine's namespace
  std::string program;
};

// A pidfd: refers to one process, even after its pid has been reused.
class PidHandle {
 public:
  explicit PidHandle(int pidfd) : pidfd_(pidfd) {}
  ~PidHandle();
  PidHandle(const PidHandle&) = delete;
  PidHandle& operator=(const PidHandle&) = delete;
  bool signal(int number) const;

 private:
  const int pidfd_;
};

// The virtual switch, and this process's connection to it.
class Network {
 public:
  // Moves this process to a new network namespace. Call before starting threads. Returns "" on success, else
  // the reason why the test must be skipped.
  static std::string enter();
  Network();
  static constexpr int kSwitch = 1;  // this process's host number
  static std::string address(int host) { return "10.211.0." + std::to_string(host); }
  bool can_disturb() const { return can_disturb_; }  // netem is available

 private:
  bool can_disturb_ = false;
};

class Host {
 public:
  Host(std::string name, int number) : name_(std::move(name)), number_(number) { power_on(); }

  const std::string& name() const { return name_; }
  std::string address() const { return Network::address(number_); }
  bool is_on() const { return machine_ != nullptr; }
  int starts() const { return starts_; }
  void power_on();
  // Kills all processes at once, without any packet to other machines. The content of /dev/shm and /run is
  // lost.
  void power_off();

  std::unique_ptr<Process> start(const std::vector<std::string>& words,
                                 const Environment& environment = {}) const;
  std::vector<Running> processes() const;              // without the machine's init process
  std::shared_ptr<PidHandle> handle(pid_t pid) const;  // null if it is not a process of this machine
  std::vector<std::string> shared_memory() const;      // names in /dev/shm

  void set_link(bool up) const;
  // Silently drops the packets from this machine to the other one, as a broken switch would.
  void lose_packets_to(const Host& other, bool lose) const;
  // Applies netem parameters to the machine's link; "" removes them.
  void disturb(const std::string& how) const;

 private:
  std::string port() const { return "port" + std::to_string(number_); }
  std::string hardware_address() const;
  std::vector<std::string> on_it(std::vector<std::string> words) const;

  const std::string name_;
  const int number_;
  std::unique_ptr<Process> machine_;
  pid_t first_ = 0;
  int starts_ = 0;
};

}  // namespace gpupool::testing
