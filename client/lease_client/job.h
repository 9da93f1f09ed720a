// The lease of a job of a batch system. A job has no process whose end is its own, so its lease lives as long
// as a folder, which the batch system makes when the job starts on a machine and renames or removes at its
// end.
//
// The folder belongs to the job's user, mode 0700, and has
//   answer   stdout of the pool-lease that holds the lease: its answer. Whoever starts pool-lease takes an
//            exclusive lock (flock) of this file; pool-lease inherits it, so the lock ends with pool-lease.
//   log      stderr of pool-lease
//   servers  the lease file (client/lease/file.h)
//
// Used by pool-lease's options --hold and --await, which client/slurm/ starts. One thread, but stop
// functions.
#pragma once
#include <string>

#include "common/result.h"

namespace gpupool::lease_client {

constexpr const char* kJobAnswer = "answer";
constexpr const char* kJobLog = "log";
constexpr const char* kJobServers = "servers";

// Environment of `pool-lease --hold`. The text stands for the job; all machines of the job have the same.
constexpr const char* kLeaseIdVariable = "GPUPOOL_LEASE_ID";
// 1: another machine of the job holds the lease, and this one follows it.
constexpr const char* kLeaseFollowVariable = "GPUPOOL_LEASE_FOLLOW";

// Returns the id of the request for a job's lease (Request.id in pool.proto).
std::string request_id_of(const std::string& text);

// A job's folder, as long as it has its name. Owned by pool-lease.
class JobFolder {
 public:
  // ErrorCode::unavailable: there is no such folder.
  static Result<JobFolder> open(const std::string& path);
  JobFolder(JobFolder&& other) noexcept;
  JobFolder& operator=(JobFolder&&) = delete;
  ~JobFolder();

  std::string servers() const { return path_ + "/" + kJobServers; }
  // Blocks until the folder was renamed or removed, or `signals` can be read.
  void await_end(int signals) const;
  // False once the folder was renamed or removed.
  bool exists() const;

 private:
  JobFolder(std::string path, int folder);

  std::string path_;
  int folder_;   // O_PATH
  int changes_;  // inotify, or -1: the folder is looked at every second
};

// Waits until the job's lease was granted; meanwhile copies new lines of its log to stderr. Prints the
// variables of the job's programs on stdout, each "NAME=VALUE" and a null character, and returns 0. Returns 1
// if the lease was refused or has ended; the reason is on stderr.
int await_job_lease(const std::string& folder);

}  // namespace gpupool::lease_client
