#include "client/slurm/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

namespace gpupool::slurm {
namespace {

namespace fs = std::filesystem;

// pool-lease may be writing a file when its folder is renamed, at most once more afterwards.
constexpr int kRemovals = 10;

Error failed(const std::string& what, const std::string& path) {
  return {ErrorCode::unavailable,
          "cannot " + what + " " + path + ": " + std::generic_category().message(errno)};
}

// Makes the folder of all jobs, and checks that no user can change its entries.
Result<void> make_common_folder(const std::string& folder) {
  std::error_code status;
  // Users must reach their folders, whatever the umask of slurmd is.
  if (fs::create_directories(folder, status)) fs::permissions(folder, fs::perms(0755), status);
  struct stat about {};
  if (::lstat(folder.c_str(), &about) != 0) return failed("make the folder", folder);
  if (!S_ISDIR(about.st_mode) || about.st_uid != ::geteuid() || (about.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Error{ErrorCode::unavailable,
                 folder +
                     " must be a folder that only root can write; correct it, or name "
                     "another one with folder= in plugstack.conf"};
  }
  return {};
}

int make_file(int folder, const char* name, uid_t user, gid_t group) {
  const int file =
      ::openat(folder, name, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file >= 0 && ::fchown(file, user, group) == 0) return file;
  if (file >= 0) ::close(file);
  return -1;
}

// True for "JOB.RESTART-NODE" of any restart.
bool is_of_job(const std::string& name, uint32_t job, const std::string& node) {
  const std::string begin = std::to_string(job) + ".", end = "-" + node;
  if (!name.starts_with(begin) || !name.ends_with(end) || name.size() <= begin.size() + end.size())
    return false;
  return std::all_of(name.begin() + static_cast<ptrdiff_t>(begin.size()),
                     name.end() - static_cast<ptrdiff_t>(end.size()),
                     [](char c) { return c >= '0' && c <= '9'; });
}

// Returns the names of the folders of all runs of the job on this node.
std::vector<std::string> folders_of(const std::string& folder, uint32_t job, const std::string& node) {
  std::error_code status;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder, status)) {
    if (const std::string name = entry.path().filename(); is_of_job(name, job, node)) names.push_back(name);
  }
  return names;
}

}  // namespace

std::string folder_name(const JobRun& run) {
  return std::to_string(run.job) + "." + std::to_string(run.restart) + "-" + run.node;
}

Result<JobFiles> make_job_folder(const std::string& folder, const JobRun& run, uid_t user, gid_t group) {
  if (const auto made = make_common_folder(folder); !made) return made.error();
  JobFiles files{.path = folder + "/" + folder_name(run)};
  if (::mkdir(files.path.c_str(), 0700) != 0) return failed("make the job's folder", files.path);
  const int made = ::open(files.path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (made >= 0) {
    files.answer = make_file(made, "answer", user, group);
    files.log = make_file(made, "log", user, group);
  }
  // Changes the owner last: until then only root can change the folder.
  const bool good = files.answer >= 0 && files.log >= 0 && ::flock(files.answer, LOCK_EX | LOCK_NB) == 0 &&
                    ::fchown(made, user, group) == 0;
  const Error why = failed("make the files of the job in", files.path);
  if (made >= 0) ::close(made);
  if (good) return files;
  for (const int file : {files.answer, files.log}) {
    if (file >= 0) ::close(file);
  }
  return why;
}

std::string find_job_folder(const std::string& folder, uint32_t job, const std::string& node, uid_t user) {
  for (const std::string& name : folders_of(folder, job, node)) {
    const std::string path = folder + "/" + name;
    struct stat about {};
    if (::lstat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode) && about.st_uid == user) return path;
  }
  return "";
}

void end_leases(const std::string& folder, uint32_t job, const std::string& node) {
  std::error_code status;
  for (const std::string& name : folders_of(folder, job, node)) {
    const std::string ended = folder + "/.ended-" + name + "-" + std::to_string(::getpid());
    if (::rename((folder + "/" + name).c_str(), ended.c_str()) != 0) continue;
    for (int i = 0; i < kRemovals && fs::exists(ended, status); ++i) fs::remove_all(ended, status);
  }
}

}  // namespace gpupool::slurm
