// Starts pool-lease for the plugin: to check a request, to hold a job's lease, and to wait for it. One
// thread.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "client/slurm/job_folder.h"
#include "common/result.h"

namespace gpupool::slurm {

struct Finished {
  int status = -1;     // exit status; -1: ended by a signal
  std::string output;  // of stdout
};
// Runs a program to its end. `variables`: its environment, NAME=VALUE each; null: this process's. `quiet`:
// its stderr is discarded. ErrorCode::unavailable: it cannot be started.
Result<Finished> run_program(const std::vector<std::string>& words, char* const* variables = nullptr,
                             bool quiet = false);

struct Holder {
  std::vector<std::string> words;      // the program and its arguments
  std::vector<std::string> variables;  // its whole environment
  JobFiles files;                      // closed by start_holder()
  uid_t user = 0;
  gid_t group = 0;
  std::string user_name;  // for its further groups
};
// Starts the program as the user, in a session of its own. It outlives this process. Root only. If the user
// is the reason that it does not start, the reason becomes the job's answer (client/lease_client/job.h), and
// there is no error, which would make Slurm drain the node.
Result<void> start_holder(const Holder& holder);

// Starts a program in a session of its own and does not wait for it.
void start_detached(const std::vector<std::string>& words);

}  // namespace gpupool::slurm
