// A network of machines for tests, all of it in namespaces of this process's own: nothing is seen outside, no address can be taken
// already, and with this process everything ends.
//
// One thread. Failures are exceptions.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tests/support/processes.h"

namespace gpupool::testing {

// What runs on a machine, by its number in this process's /proc.
struct Running {
  pid_t pid;
  pid_t inner;  // its number on the machine
  std::string program;
};

// A process that is meant, and never another one that has got its number since.
class Handle {
 public:
  explicit Handle(int pidfd) : pidfd_(pidfd) {}
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  bool signal(int number) const;

 private:
  const int pidfd_;
};

// The switch, and this process's place at it.
class Network {
 public:
  // This process leaves its network for a new one: to be called before it has threads. Empty: done; else why it cannot be.
  static std::string enter();
  Network();
  static std::string address(int host) { return "10.211.0." + std::to_string(host); }
  bool can_disturb() const { return can_disturb_; }  // the kernel has netem

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
  // Every process at once; nobody in the network hears a last word. What is in /dev/shm and /run is gone.
  void power_off();

  std::unique_ptr<Process> start(const std::vector<std::string>& words, const Environment& environment = {}) const;
  std::vector<Running> processes() const;  // without the machine's own
  std::shared_ptr<Handle> handle(pid_t pid) const;  // null: it is not (any more) a process of this machine
  std::vector<std::string> shared_memory() const;   // names in /dev/shm

  void set_link(bool up) const;
  // What it sends to the other one is lost. Without a word, as behind a broken switch.
  void lose_packets_to(const Host& other, bool lose) const;
  // netem; empty: as usual.
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
