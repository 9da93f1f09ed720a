// The fault of the chaos test that replaces poold's program.
#include "tests/chaos/chaos.h"
#include "tests/support/poold_process.h"

namespace gpupool::testing {

// Its program is replaced by the same one. No session, lease or client may notice.
bool Chaos::upgrade_poold() {
  GpuMachine* const machine = running_gpus();
  if (!machine || recovering_.contains(machine) || next_fault_at_[&machine->host()] > time_of_day())
    return false;
  Process admin({program_path("pool-admin"), "--poold", "unix:" + machine->admin_socket(), "upgrade"}, {});
  int status = -1;
  for (const int64_t end = time_of_day() + kPatience.count(); status < 0 && time_of_day() < end;) {
    status = admin.wait(std::chrono::milliseconds(20));
    run_due_actions();
    jobs_->poll();
  }
  if (status != 0) wrong("the poold of " + machine->host().name() + " was not upgraded: " + admin.output());
  return true;
}

}  // namespace gpupool::testing
