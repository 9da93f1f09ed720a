// The faults that the chaos test injects.
#include <signal.h>

#include <algorithm>

#include "tests/chaos/chaos.h"

namespace gpupool::testing {
namespace {
// Short faults must not make anything fail: clients and poolds wait 15 s for each other, the scheduler 20 s
// or more (chaos.cc). After a link is back, TCP may take as long again to retransmit.
constexpr int64_t kShortFrom = 100, kShortTo = 3'000;
constexpr int64_t kBetweenFaults = 8'000;
constexpr int64_t kLongFrom = 18'000, kLongTo = 24'000;
constexpr int64_t kSchedulerLong = 34'000;  // longer than kNodeLostMs
constexpr int64_t kAfterwards = 5'000;
// The scheduler fences a host that registers more often within a minute.
constexpr size_t kStartsInAMinute = 4;
constexpr int kTries = 50;

}  // namespace

const std::vector<Chaos::Kind>& Chaos::kinds() {
  static const std::vector<Kind> all{
      {"poold killed", 6, &Chaos::kill_poold},
      {"poold ended", 3, &Chaos::end_poold},
      {"poold upgraded", 6, &Chaos::upgrade_poold},
      {"poold stopped", 6, &Chaos::stop_poold},
      {"poold stopped for long", 1, &Chaos::stop_poold_long},
      {"worker killed", 12, &Chaos::kill_worker},
      {"worker stopped", 6, &Chaos::stop_worker},
      {"lease moved", 12, &Chaos::move_lease},
      {"GPU host drained", 4, &Chaos::drain_host},
      {"program killed", 14, &Chaos::kill_program},
      {"program ended", 6, &Chaos::end_program},
      {"program stopped", 6, &Chaos::stop_program},
      {"pool-lease killed", 5, &Chaos::kill_helper},
      {"pool-lease ended", 5, &Chaos::end_helper},
      {"pool-lease stopped", 5, &Chaos::stop_helper},
      {"scheduler killed", 8, &Chaos::kill_scheduler},
      {"scheduler ended", 3, &Chaos::end_scheduler},
      {"scheduler stopped", 4, &Chaos::stop_scheduler},
      {"scheduler stopped for long", 1, &Chaos::stop_scheduler_long},
      {"link cut", 8, &Chaos::cut_link},
      {"link cut for long", 1, &Chaos::cut_link_long},
      {"two hosts cut off from each other", 8, &Chaos::cut_between},
      {"packets lost one way", 4, &Chaos::cut_one_way},
      {"link disturbed", 4, &Chaos::disturb_link},
      {"GPU host lost power", 3, &Chaos::lose_power_of_gpus},
      {"client host lost power", 3, &Chaos::lose_power_of_clients},
      {"scheduler host lost power", 3, &Chaos::lose_power_of_scheduler},
  };
  return all;
}

void Chaos::inject_one() {
  std::vector<Kind> wanted;
  std::copy_if(kinds().begin(), kinds().end(), std::back_inserter(wanted), [&](const Kind& kind) {
    const auto is_named = [&](const std::string& part) {
      return std::string(kind.name).find(part) != std::string::npos;
    };
    return options_.only.empty() || std::any_of(options_.only.begin(), options_.only.end(), is_named);
  });
  uint64_t weights = 0;
  for (const Kind& kind : wanted) weights += static_cast<uint64_t>(kind.weight);
  for (int i = 0; i < kTries && weights > 0; ++i) {
    auto left = static_cast<int64_t>(pick(weights));
    const auto kind =
        std::find_if(wanted.begin(), wanted.end(), [&](const Kind& one) { return (left -= one.weight) < 0; });
    if (!(this->*kind->inject)()) continue;
    ++injected_[kind->name];
    return;
  }
  ++injected_["no fault possible"];
}

GpuMachine* Chaos::running_gpus() {
  std::vector<GpuMachine*> all;
  for (const auto& one : poolds_) all.push_back(one.get());
  return any_of<GpuMachine>(all, [](const GpuMachine& one) { return one.runs(); });
}

GpuMachine* Chaos::restartable_gpus() {
  std::vector<GpuMachine*> all;
  for (const auto& one : poolds_) all.push_back(one.get());
  const int64_t minute_ago = time_of_day() - 60'000;
  return any_of<GpuMachine>(all, [&](const GpuMachine& one) {
    auto& starts = starts_[&one];
    std::erase_if(starts, [&](int64_t at) { return at < minute_ago; });
    return one.runs() && starts.size() < kStartsInAMinute && !recovering_.contains(&one);
  });
}

SchedulerMachine* Chaos::running_scheduler() {
  std::vector<SchedulerMachine*> all;
  for (const auto& one : schedulers_) all.push_back(one.get());
  return any_of<SchedulerMachine>(all, [](const SchedulerMachine& one) { return one.runs(); });
}

Host* Chaos::host_due_for_fault() {
  std::vector<Host*> all;
  for (const auto& one : schedulers_) all.push_back(&one->host());
  for (const auto& one : poolds_) all.push_back(&one->host());
  for (const auto& one : clients_) all.push_back(one.get());
  return any_of<Host>(all,
                      [&](const Host& one) { return one.is_on() && next_fault_at_[&one] <= time_of_day(); });
}

void Chaos::delay_next_fault(const Host& host, int64_t until) {
  next_fault_at_[&host] = std::max(next_fault_at_[&host], until + kBetweenFaults);
}

void Chaos::later(int64_t in_ms, std::function<void()> what) {
  pending_.push_back({time_of_day() + in_ms, std::move(what)});
}

// Waits for the daemon to end. Meanwhile ends other faults that are due, because this may take seconds.
bool Chaos::await_end(Daemon& daemon) {
  const int64_t end = time_of_day() + kPatience.count();
  while (!daemon.await_end(std::chrono::milliseconds(20))) {
    if (time_of_day() > end) return false;
    run_due_actions();
    jobs_->poll();
  }
  return true;
}

// Call after the poold was ended or its machine switched off: schedules its restart.
void Chaos::lost_poold(GpuMachine& machine) {
  if (!await_end(machine))
    throw std::runtime_error(machine.host().name() + "'s poold did not end:\n" + machine.log());
  starts_[&machine].push_back(time_of_day());
  later(time_between(0, 2'000), [this, &machine] {
    if (!machine.host().is_on()) machine.host().power_on();
    machine.start();
    recovering_.insert(&machine);
  });
}

bool Chaos::kill_poold() {
  GpuMachine* const machine = restartable_gpus();
  if (!machine) return false;
  fault_log_.begin(machine->host().name(), time_of_day());
  machine->signal(SIGKILL);
  lost_poold(*machine);
  return true;
}

bool Chaos::end_poold() {
  GpuMachine* const machine = restartable_gpus();
  if (!machine) return false;
  fault_log_.begin(machine->host().name(), time_of_day());
  machine->signal(SIGTERM);
  machine->signal(SIGCONT);
  lost_poold(*machine);
  return true;
}

bool Chaos::suspend_for(const Host& host, pid_t pid, int64_t time) {
  const auto process = host.handle(pid);
  if (!process || !process->signal(SIGSTOP)) return false;
  later(time, [process] { process->signal(SIGCONT); });
  return true;
}

bool Chaos::stop_daemon(Daemon& daemon, int64_t time) {
  delay_next_fault(daemon.host(), time_of_day() + time);
  return suspend_for(daemon.host(), daemon.pid(), time);
}

bool Chaos::stop_poold() {
  GpuMachine* const machine = running_gpus();
  return machine && next_fault_at_[&machine->host()] <= time_of_day() &&
         stop_daemon(*machine, time_between(kShortFrom, kShortTo));
}

bool Chaos::stop_poold_long() {
  GpuMachine* const machine = options_.long_ones ? running_gpus() : nullptr;
  if (!machine || recovering_.contains(machine)) return false;
  const std::string name = machine->host().name();
  fault_log_.begin(name, time_of_day());
  const int64_t time = time_between(kLongFrom, kLongTo);
  stop_daemon(*machine, time);
  later(time + kAfterwards, [this, machine] { recovering_.insert(machine); });
  return true;
}

bool Chaos::kill_worker() {
  GpuMachine* const machine = running_gpus();
  // Not during poold's start: without its first worker it exits, and expects a supervisor to restart it.
  if (!machine || recovering_.contains(machine)) return false;
  std::vector<Running> workers = machine->host().processes();
  std::erase_if(workers, [](const Running& one) { return one.program != "poold-worker"; });
  if (workers.empty()) return false;
  const Running& worker = workers[pick(workers.size())];
  const auto process = machine->host().handle(worker.pid);
  if (process) fault_log_.worker(machine->host().name(), worker.inner);
  return process && process->signal(SIGKILL);
}

bool Chaos::stop_worker() {
  GpuMachine* const machine = running_gpus();
  if (!machine || next_fault_at_[&machine->host()] > time_of_day()) return false;
  std::vector<Running> workers = machine->host().processes();
  std::erase_if(workers, [](const Running& one) { return one.program != "poold-worker"; });
  const int64_t time = time_between(kShortFrom, kShortTo);
  if (workers.empty() || !suspend_for(machine->host(), workers[pick(workers.size())].pid, time)) return false;
  delay_next_fault(machine->host(), time_of_day() + time);
  return true;
}

// Returns the pid of the job's pool-lease, which holds the lease; 0 if there is none.
pid_t Chaos::helper_of(const Jobs::Job& job) {
  for (const Running& one : job.client->processes()) {
    if (one.program == "pool-lease" && jobs_->of_process(one.pid) == &job) return one.pid;
  }
  return 0;
}

pid_t Chaos::program_of(const Jobs::Job& job) {
  if (is_zombie(job.process->pid())) return 0;
  const auto children = children_of(job.process->pid());
  return children.empty() ? 0 : children[0];
}

bool Chaos::signal_program(int number, bool fatal) {
  if (jobs_->running().empty()) return false;
  Jobs::Job& job = *jobs_->running()[pick(jobs_->running().size())];
  const pid_t pid = program_of(job);
  if (pid == 0) return false;
  if (!fatal)
    return next_fault_at_[job.client] <= time_of_day() &&
           suspend_for(*job.client, pid, time_between(kShortFrom, kShortTo));
  const auto process = job.client->handle(pid);
  job.killed = job.killed || process;
  return process && process->signal(number);
}

bool Chaos::kill_program() {
  return signal_program(SIGKILL, true);
}
bool Chaos::end_program() {
  return signal_program(pick(2) == 0 ? SIGTERM : SIGINT, true);
}
bool Chaos::stop_program() {
  return signal_program(SIGSTOP, false);
}

bool Chaos::signal_helper(int number, bool fatal) {
  if (jobs_->running().empty()) return false;
  Jobs::Job& job = *jobs_->running()[pick(jobs_->running().size())];
  const pid_t pid = helper_of(job);
  if (pid == 0) return false;
  if (!fatal)
    return next_fault_at_[job.client] <= time_of_day() &&
           suspend_for(*job.client, pid, time_between(kShortFrom, kShortTo));
  const auto process = job.client->handle(pid);
  job.killed = job.killed || process;
  job.may_leak = job.may_leak || (process && number == SIGKILL);
  return process && process->signal(number);
}

bool Chaos::kill_helper() {
  return signal_helper(SIGKILL, true);
}
bool Chaos::end_helper() {
  return signal_helper(SIGTERM, true);
}
bool Chaos::stop_helper() {
  return signal_helper(SIGSTOP, false);
}

void Chaos::lost_scheduler(SchedulerMachine& machine) {
  fault_log_.begin(kSchedulers, time_of_day());
  if (!await_end(machine)) throw std::runtime_error("the scheduler did not end:\n" + machine.log());
  later(time_between(0, 2'000), [this, &machine] {
    if (!machine.host().is_on()) machine.host().power_on();
    machine.start();
    scheduler_was_lost_ = true;
  });
}

bool Chaos::kill_scheduler() {
  SchedulerMachine* const machine = running_scheduler();
  if (!machine) return false;
  note_leases();
  machine->signal(SIGKILL);
  lost_scheduler(*machine);
  return true;
}

bool Chaos::end_scheduler() {
  SchedulerMachine* const machine = running_scheduler();
  if (!machine) return false;
  note_leases();
  machine->signal(SIGTERM);
  machine->signal(SIGCONT);
  lost_scheduler(*machine);
  return true;
}

bool Chaos::stop_scheduler() {
  SchedulerMachine* const machine = running_scheduler();
  return machine && next_fault_at_[&machine->host()] <= time_of_day() &&
         stop_daemon(*machine, time_between(kShortFrom, kShortTo));
}

bool Chaos::stop_scheduler_long() {
  SchedulerMachine* const machine = options_.long_ones ? running_scheduler() : nullptr;
  return machine && next_fault_at_[&machine->host()] <= time_of_day() &&
         stop_daemon(*machine, kSchedulerLong);
}

bool Chaos::cut_link() {
  Host* const host = host_due_for_fault();
  if (!host) return false;
  const int64_t time = time_between(kShortFrom, kShortTo);
  delay_next_fault(*host, time_of_day() + time);
  host->set_link(false);
  later(time, [this, host, starts = host->starts()] {
    if (host->is_on() && host->starts() == starts) host->set_link(true);
  });
  return true;
}

bool Chaos::cut_link_long() {
  GpuMachine* const machine = options_.long_ones ? running_gpus() : nullptr;
  if (!machine || recovering_.contains(machine) || next_fault_at_[&machine->host()] > time_of_day())
    return false;
  Host& host = machine->host();
  const int64_t time = time_between(kLongFrom, kLongTo);
  fault_log_.begin(host.name(), time_of_day());
  delay_next_fault(host, time_of_day() + time);
  host.set_link(false);
  later(time, [&host, starts = host.starts()] {
    if (host.is_on() && host.starts() == starts) host.set_link(true);
  });
  later(time + kAfterwards, [this, machine] { recovering_.insert(machine); });
  return true;
}

bool Chaos::cut_between() {
  Host* const one = host_due_for_fault();
  Host* const other = host_due_for_fault();
  if (!one || one == other) return false;
  const int64_t time = time_between(kShortFrom, kShortTo);
  const auto set = [one, other, starts = std::pair(one->starts(), other->starts())](bool lose) {
    if (one->is_on() && one->starts() == starts.first) one->lose_packets_to(*other, lose);
    if (other->is_on() && other->starts() == starts.second) other->lose_packets_to(*one, lose);
  };
  for (const Host* const host : {one, other}) delay_next_fault(*host, time_of_day() + time);
  set(true);
  later(time, [this, set] { set(false); });
  return true;
}

bool Chaos::cut_one_way() {
  Host* const one = host_due_for_fault();
  Host* const other = host_due_for_fault();
  if (!one || one == other) return false;
  const int64_t time = time_between(kShortFrom, kShortTo);
  for (const Host* const host : {one, other}) delay_next_fault(*host, time_of_day() + time);
  one->lose_packets_to(*other, true);
  later(time, [this, one, other, starts = one->starts()] {
    if (one->is_on() && one->starts() == starts) one->lose_packets_to(*other, false);
  });
  return true;
}

bool Chaos::disturb_link() {
  Host* const host = network_.can_disturb() ? host_due_for_fault() : nullptr;
  if (!host) return false;
  const int64_t time = time_between(kShortFrom, kShortTo);
  delay_next_fault(*host, time_of_day() + time);
  host->disturb(pick(2) == 0 ? "delay 20ms 15ms" : "loss 5%");
  later(time, [host, starts = host->starts()] {
    if (host->is_on() && host->starts() == starts) host->disturb("");
  });
  return true;
}

}  // namespace gpupool::testing
