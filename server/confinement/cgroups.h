// A cgroup v2 for each worker, with limits, if the host has delegated poold's own cgroup to it (Delegate=yes
// in its unit). WorkerPool uses it on poold's thread; workers call enter_cgroup().
//
//   GROUP/poold        poold itself: a group that hands controllers on to its children may hold no processes
//   GROUP/worker-N     a worker, which makes and enters it before it loads the device library
//
// poold's thread reads a worker's counters when the worker has ended. Another thread removes the cgroup:
// adding and removing cgroups waits for a kernel lock that is held while processes are moved between cgroups.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/result.h"

namespace gpupool::server {

constexpr unsigned kWorkerThreads = 4096;  // a driver and a session use some dozens

// Limits of one worker. 0: no limit.
struct WorkerLimits {
  unsigned memory_mib = 0;  // host memory, without swap
  unsigned threads = kWorkerThreads;
  unsigned cpus = 0;
  bool any() const { return memory_mib != 0 || threads != 0 || cpus != 0; }
};

struct DelegatedCgroup {
  std::string folder;
  std::vector<std::string> controllers;  // the available ones of memory, pids and cpu
  bool has(std::string_view controller) const;
};

// Finds this process's own cgroup, if poold may divide it. Changes nothing. ErrorCode::unavailable: it may
// not; the message says why.
Result<DelegatedCgroup> find_delegated_cgroup();

class Cgroups {
 public:
  // Moves this process to GROUP/poold, enables the controllers, and removes cgroups that a killed poold has
  // left. Called once, at the start. ErrorCode::unavailable: no cgroup is delegated; other codes: setting up
  // the delegated one failed.
  static Result<std::unique_ptr<Cgroups>> open(const WorkerLimits& limits);
  // Takes over what this process's previous program has set up in `folder` (server/poold/upgrade), with the
  // cgroups of its workers, `in_use`.
  static std::unique_ptr<Cgroups> take_over(const std::string& folder, const WorkerLimits& limits,
                                            const std::set<std::string>& in_use);
  // Waits up to 1 s for cgroups that cannot be removed yet. The next poold removes the rest.
  ~Cgroups();
  Cgroups(const Cgroups&) = delete;
  Cgroups& operator=(const Cgroups&) = delete;

  const DelegatedCgroup& group() const { return group_; }
  // Arguments of enter_cgroup() for the next worker. The folder's name is never reused.
  std::string next_folder();
  const std::string& settings() const { return settings_; }

  struct WorkerExit {
    std::string killed;            // why the kernel's OOM killer killed it, and what to do; empty: it did not
    uint64_t refused_threads = 0;  // threads and processes refused by the limit
  };
  // Reads how a worker ended. Call it after waitpid(). The other thread then kills processes left in the
  // cgroup and removes the cgroup.
  WorkerExit finish_worker(const std::string& folder);

 private:
  struct Ended {
    std::string folder;
    unsigned tries = 0;
  };
  Cgroups(DelegatedCgroup group, const WorkerLimits& limits, const std::set<std::string>& in_use);
  void remove_ended();

  const DelegatedCgroup group_;
  const WorkerLimits limits_;
  const std::string settings_;
  uint64_t next_ = 1;
  std::mutex mutex_;  // guards ended_ and stop_by_
  std::condition_variable changed_;
  std::vector<Ended> ended_;
  std::chrono::steady_clock::time_point stop_by_ = std::chrono::steady_clock::time_point::max();
  std::thread remover_;
};

// Called in the worker: makes the cgroup, applies `settings` (FILE=VALUE, separated by commas) to it, and
// enters it.
Result<void> enter_cgroup(const std::string& folder, std::string_view settings);

}  // namespace gpupool::server
