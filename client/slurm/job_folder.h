// The folders by which the processes of a job on a node find its lease (client/lease_client/job.h):
// FOLDER/JOB.RESTART-NODE, owned by the job's user, in a folder of root's. Several slurmd of one machine, and
// a job that is requeued, use different ones. Used by the plugin in slurmd's and slurmstepd's processes.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "common/result.h"

namespace gpupool::slurm {

struct JobRun {
  uint32_t job = 0;
  uint32_t restart = 0;  // how often the job was requeued
  std::string node;
};

std::string folder_name(const JobRun& run);

// The files of a new folder, open for pool-lease.
struct JobFiles {
  std::string path;
  int answer = -1;  // locked while a process has it open
  int log = -1;
};
// Makes the folder of a job for its user; root only. ErrorCode::unavailable: the node cannot make it.
Result<JobFiles> make_job_folder(const std::string& folder, const JobRun& run, uid_t user, gid_t group);

// Returns the folder of the job's present run; empty if the job has no lease on this node. Slurm does not
// tell steps how often their job was requeued, but earlier runs have no folder.
std::string find_job_folder(const std::string& folder, uint32_t job, const std::string& node, uid_t user);

// Ends the leases of all runs of the job on this node: pool-lease returns them when their folders are
// renamed.
void end_leases(const std::string& folder, uint32_t job, const std::string& node);

}  // namespace gpupool::slurm
