// Runs a pool of real daemons and programs, and injects random faults: kills, stops, network failures, power
// failures, moves of leases. The faults are chosen by a seed. After every `quiet_every` faults it lets the
// pool become idle and checks that all resources are accounted for. One thread. Failures of the test itself
// are exceptions.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <map>
#include <random>

#include "tests/chaos/audit.h"
#include "tests/chaos/jobs.h"
#include "tests/support/etcd.h"

namespace gpupool::testing {

constexpr std::chrono::seconds kCallTime{2};  // for a call of the scheduler

struct ChaosOptions {
  int faults = 1000;
  uint64_t seed = 1;
  int pace_ms = 250;     // mean time between faults
  int quiet_every = 50;  // number of faults between checks
  int jobs = 5;          // programs at the same time
  int gpu_hosts = 3;
  int schedulers = 1;             // with more than one the store is etcd
  bool long_ones = true;          // include faults that last longer than the pool's timeouts
  std::vector<std::string> only;  // substrings of fault names; empty: all
  std::string keep;               // folder for the logs of a failed run
};

class Chaos {
 public:
  explicit Chaos(const ChaosOptions& options);
  ~Chaos();
  // Runs the test, prints the violations, and returns their number.
  size_t run();

 private:
  // Faults (faults.cc). A function returns false if the fault cannot be injected at the moment.
  struct Kind {
    const char* name;
    int weight;
    bool (Chaos::*inject)();
  };
  static const std::vector<Kind>& kinds();
  void inject_one();
  bool kill_poold();
  bool end_poold();
  bool upgrade_poold();
  bool stop_poold();
  bool stop_poold_long();
  bool kill_worker();
  bool stop_worker();
  bool move_lease();
  bool drain_host();
  bool kill_program();
  bool end_program();
  bool stop_program();
  bool kill_helper();
  bool end_helper();
  bool stop_helper();
  bool kill_scheduler();
  bool end_scheduler();
  bool stop_scheduler();
  bool stop_scheduler_long();
  bool cut_link();
  bool cut_link_long();
  bool cut_between();
  bool cut_one_way();
  bool disturb_link();
  bool lose_power_of_gpus();
  bool lose_power_of_clients();
  bool lose_power_of_scheduler();

  // Helpers of the faults (faults.cc).
  void undrain(const std::string& node);  // move_faults.cc
  uint64_t pick(uint64_t below) { return random_() % below; }
  int64_t time_between(int64_t from, int64_t to) {
    return from + static_cast<int64_t>(pick(static_cast<uint64_t>(to - from + 1)));
  }
  template <class T>
  T* any_of(const std::vector<T*>& all, const std::function<bool(const T&)>& fits) {
    std::vector<T*> fitting;
    std::copy_if(all.begin(), all.end(), std::back_inserter(fitting), [&](T* one) { return fits(*one); });
    return fitting.empty() ? nullptr : fitting[pick(fitting.size())];
  }
  GpuMachine* restartable_gpus();
  GpuMachine* running_gpus();
  SchedulerMachine* running_scheduler();
  Host* host_due_for_fault();
  void delay_next_fault(const Host& host, int64_t until);
  void later(int64_t in_ms, std::function<void()> what);
  void lost_poold(GpuMachine& machine);
  void lost_scheduler(SchedulerMachine& machine);
  bool suspend_for(const Host& host, pid_t pid, int64_t time);
  bool stop_daemon(Daemon& daemon, int64_t time);
  bool signal_helper(int number, bool fatal);
  bool signal_program(int number, bool fatal);
  pid_t helper_of(const Jobs::Job& job);
  pid_t program_of(const Jobs::Job& job);

  // The run (chaos.cc).
  void poll();
  void run_due_actions();
  bool await_end(Daemon& daemon);
  void heal();
  void keep_busy();
  void pass(int64_t time);
  void check_idle();
  void lease_whole_pool();
  size_t leases_moved() const;  // as the schedulers have logged
  void note_leases();
  void check_leases();
  void wrong(const std::string& what);
  std::unique_ptr<pool::PoolAdmin::Stub> leader();

  const ChaosOptions options_;
  std::mt19937_64 random_;
  TemporaryFolder folder_;
  Network network_;
  std::unique_ptr<EtcdCluster> etcd_;
  LeaseLedger ledger_;
  FaultLog fault_log_;
  std::vector<std::unique_ptr<SchedulerMachine>> schedulers_;
  std::vector<std::unique_ptr<GpuMachine>> poolds_;
  std::vector<std::unique_ptr<Host>> clients_;
  std::unique_ptr<Jobs> jobs_;
  std::unique_ptr<Audit> audit_;

  struct PendingAction {
    int64_t at;
    std::function<void()> what;
  };
  std::vector<PendingAction> pending_;
  std::map<const Host*, int64_t> next_fault_at_;  // when the next tolerable fault may hit a host
  std::map<const GpuMachine*, std::vector<int64_t>> starts_;
  std::set<const GpuMachine*> recovering_;
  std::map<std::string, int> leases_before_;  // lease -> job; the next leader must know them
  bool scheduler_was_lost_ = false;
  int64_t logs_read_ = 0;
  std::map<std::string, int> injected_;
  std::vector<std::string> wrong_;
};

}  // namespace gpupool::testing
