// The programs of the chaos test: starts them with pool-run, and judges whether each failure is explained by
// an injected fault. One thread. Failures of the test itself are exceptions.
#pragma once
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/chaos/lease_ledger.h"
#include "tests/chaos/network.h"

namespace gpupool::testing {

inline const std::string kSchedulers = "the schedulers";  // pseudo host in FaultLog

// Records the times of faults that excuse failures of programs on a host or with a lease there.
class FaultLog {
 public:
  void begin(const std::string& host, int64_t at) { spans_.push_back({host, at, {}}); }
  void end(const std::string& host, int64_t at);
  // Records that a worker was killed. `inner`: its pid in the host's namespace.
  void worker(const std::string& host, pid_t inner) { workers_.insert({host, inner}); }
  bool affects_host(const std::string& host, int64_t from, int64_t to) const;
  bool affects_worker(const std::string& host, int64_t inner) const {
    return workers_.contains({host, static_cast<pid_t>(inner)});
  }

 private:
  struct Span {
    std::string host;
    int64_t from;
    std::optional<int64_t> to;
  };
  std::vector<Span> spans_;
  std::set<std::pair<std::string, pid_t>> workers_;
};

struct JobSpec {
  std::vector<std::string> options;  // pool-run's
  std::vector<std::string> program;
  bool may_be_preempted = false;
};
JobSpec random_job(std::mt19937_64& random, const std::string& program);

class Jobs {
 public:
  struct Job {
    int number = 0;
    const Host* client = nullptr;
    std::string text;    // description for messages
    std::string folder;  // its XDG_RUNTIME_DIR
    bool may_be_preempted = false;
    bool killed = false;    // its program or pool-lease received a fatal signal
    bool may_leak = false;  // its pool-lease could not clean up
    int64_t started = 0, ended = 0;
    std::unique_ptr<Process> process;
    int status = -1;
    std::string output;
    std::string lease;            // hexadecimal
    std::string tokens;           // content of the lease file
    std::set<std::string> nodes;  // all that the lease has been on
  };
  struct Tally {
    int right = 0, excused = 0, preempted = 0;
  };

  // `folder`: for the jobs' files. `url`: pool://...
  Jobs(std::string folder, std::string url, LeaseLedger& ledger)
      : folder_(std::move(folder)), url_(std::move(url)), ledger_(ledger) {}

  Job& start(const Host& client, const JobSpec& spec);
  // Checks which jobs have got a lease, and which have ended.
  void poll();
  std::vector<std::unique_ptr<Job>>& running() { return running_; }
  // Returns the jobs, ended since the last call, that failed without an excuse or with a wrong result. Call
  // after reading the logs.
  std::vector<std::string> judge(const FaultLog& faults);
  // Returns the files that the jobs of the last judge() left behind.
  std::vector<std::string> left_behind() const { return left_behind_; }
  const Tally& tally() const { return tally_; }
  // The host loses power, and with it each pool-lease there, also those that outlive their programs.
  void may_leak_on(const Host& host);
  // Returns the running job to which the process belongs, by its environment; null: none.
  Job* of_process(pid_t pid);

 private:
  void read_tokens(Job& job);
  std::optional<std::string> fault_of(const Job& job, const FaultLog& faults);

  const std::string folder_, url_;
  LeaseLedger& ledger_;
  int started_ = 0;
  std::vector<std::unique_ptr<Job>> running_, ended_;
  std::vector<std::string> left_behind_;
  Tally tally_;
};

}  // namespace gpupool::testing
