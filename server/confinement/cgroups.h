// A control group of version 2 for each worker, with limits, where the host has delegated poold's own group to it (Delegate=yes of its unit):
//
//   GROUP/poold        poold itself: a group that hands controllers on to its children may hold no processes
//   GROUP/worker-N     a worker, which makes and enters it before it loads the device library
//
// poold's thread reads a worker's group when the worker has ended; another thread removes the group, because the kernel makes whoever adds or
// removes groups wait for those who move processes.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "protocol/wire/result.h"

namespace gpupool::server {

constexpr unsigned kWorkerThreads = 4096;  // a driver and a session have some dozens

// Limits of one worker. 0: no limit.
struct WorkerLimits {
  unsigned memory_mib = 0;  // host memory, without swap
  unsigned threads = kWorkerThreads;
  unsigned cpus = 0;
  bool any() const { return memory_mib != 0 || threads != 0 || cpus != 0; }
};

struct DelegatedCgroup {
  std::string folder;
  std::vector<std::string> controllers;  // of memory, pids and cpu
  bool has(std::string_view controller) const;
};

// This process's own group, if poold may divide it. ErrorCode::unavailable: why not. Changes nothing.
Result<DelegatedCgroup> find_delegated_cgroup();

class Cgroups {
 public:
  // Moves this process to GROUP/poold, enables the controllers, and removes what a poold that was killed has left. ErrorCode::unavailable: nothing is
  // delegated; others: it is, and something failed. Called once, at the start.
  static Result<std::unique_ptr<Cgroups>> open(const WorkerLimits& limits);
  // Waits a second for groups that cannot be removed yet; the next poold removes the rest.
  ~Cgroups();
  Cgroups(const Cgroups&) = delete;
  Cgroups& operator=(const Cgroups&) = delete;

  const DelegatedCgroup& group() const { return group_; }
  // This and the next are enter_cgroup()'s, of the next worker. The folder's name is new, so that it is never another worker's.
  std::string next();
  const std::string& settings() const { return settings_; }

  struct End {
    std::string killed;             // by the kernel for want of memory: why, and what to do. Empty: it was not
    uint64_t refused_threads = 0;   // that the limit has refused
  };
  // Reads how a worker ended that waitpid() has returned. Another thread then kills what is left in its group, and removes the group.
  End end(const std::string& folder);

 private:
  struct Ended {
    std::string folder;
    unsigned tries = 0;
  };
  Cgroups(DelegatedCgroup group, const WorkerLimits& limits);
  void remove_ended();

  const DelegatedCgroup group_;
  const WorkerLimits limits_;
  const std::string settings_;
  uint64_t next_ = 1;
  std::mutex mutex_;  // of the next three
  std::condition_variable changed_;
  std::vector<Ended> ended_;
  std::chrono::steady_clock::time_point stop_by_ = std::chrono::steady_clock::time_point::max();
  std::thread remover_;
};

// In the worker: makes the group, limits it by `settings` (FILE=VALUE, separated by commas), and enters it.
Result<void> enter_cgroup(const std::string& folder, std::string_view settings);

}  // namespace gpupool::server
