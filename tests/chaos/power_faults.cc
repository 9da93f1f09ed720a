// The faults of the chaos test that switch machines off and on.
#include "tests/chaos/chaos.h"

namespace gpupool::testing {

bool Chaos::lose_power_of_gpus() {
  GpuMachine* const machine = restartable_gpus();
  if (!machine) return false;
  fault_log_.begin(machine->host().name(), time_of_day());
  machine->host().power_off();
  lost_poold(*machine);
  return true;
}

bool Chaos::lose_power_of_clients() {
  std::vector<Host*> all;
  for (const auto& one : clients_) all.push_back(one.get());
  Host* const host = any_of<Host>(all, [](const Host& one) { return one.is_on(); });
  if (!host) return false;
  fault_log_.begin(host->name(), time_of_day());
  jobs_->may_leak_on(*host);
  host->power_off();
  later(time_between(0, 2'000), [this, host] {
    host->power_on();
    fault_log_.end(host->name(), time_of_day());
  });
  return true;
}

bool Chaos::lose_power_of_scheduler() {
  SchedulerMachine* const machine = running_scheduler();
  if (!machine) return false;
  note_leases();
  machine->host().power_off();
  lost_scheduler(*machine);
  return true;
}

}  // namespace gpupool::testing
