#include "server/worker/sandbox.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/landlock.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace gpupool::worker::sandbox {
namespace {

Error failure(const std::string& what, int error) {
  return {ErrorCode::unavailable, what + ": " + std::generic_category().message(error)};
}

Result<void> become(const std::string& user) {
  const passwd* const found = ::getpwnam(user.c_str());
  if (!found) return Error{ErrorCode::invalid, "there is no user '" + user + "' for workers; name another one with --worker-user"};
  std::vector<gid_t> groups{found->pw_gid};
  for (const char* const name : {"video", "render"}) {
    if (const ::group* const group = ::getgrnam(name)) groups.push_back(group->gr_gid);
  }
  const uid_t uid = found->pw_uid;
  const gid_t gid = found->pw_gid;
  if (::setgroups(groups.size(), groups.data()) != 0 || ::setresgid(gid, gid, gid) != 0 || ::setresuid(uid, uid, uid) != 0) {
    return failure("cannot become the user '" + user + "'", errno);
  }
  return {};
}

// linux/landlock.h of the build may be older than the kernel: only what its first version had.
constexpr uint64_t kRead = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_EXECUTE;
constexpr uint64_t kChange = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG;
constexpr uint64_t kAll = kRead | kChange | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                          LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                          LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;

constexpr uint64_t kMakeFolders = LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_REMOVE_DIR;

// What drivers read: libraries, settings, and what the kernel tells of devices.
constexpr const char* kReadable[] = {"/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/opt", "/run/nvidia"};
constexpr const char* kWritable[] = {"/dev", "/proc/self"};  // device files, shared memory; a thread's name

Result<void> allow(int ruleset, const std::string& path, uint64_t access) {
  const int file = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (file < 0) return {};  // what is not there needs no rule
  struct stat status {};
  if (::fstat(file, &status) == 0 && !S_ISDIR(status.st_mode)) access &= ~uint64_t{LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG};
  landlock_path_beneath_attr rule{};
  rule.allowed_access = access;
  rule.parent_fd = file;
  const long added = ::syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
  const int error = errno;
  ::close(file);
  if (added != 0) return failure("cannot keep '" + path + "' within reach of a worker", error);
  return {};
}

}  // namespace

Result<void> drop_user(const std::string& user) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  if (::geteuid() == 0 && !user.empty()) {
    rlimit locked{RLIM_INFINITY, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_MEMLOCK, &locked) != 0 && ::getrlimit(RLIMIT_MEMLOCK, &locked) == 0) {  // root of a container
      locked.rlim_cur = locked.rlim_max;
      ::setrlimit(RLIMIT_MEMLOCK, &locked);
    }
    if (auto changed = become(user); !changed) return changed;
  }
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return failure("cannot give up new privileges", errno);
  return {};
}

Result<std::string> restrict_files(const std::vector<std::string>& readable, const std::string& cache) {
  if (::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION) < 1) {
    return std::string("this kernel has no Landlock (Linux 5.13; it may be switched off): a worker can open whatever its user can");
  }
  landlock_ruleset_attr attributes{};
  attributes.handled_access_fs = kAll;
  const int ruleset = static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0));
  if (ruleset < 0) return failure("cannot make a Landlock ruleset", errno);
  Result<void> added;
  for (const char* const path : kReadable) {
    if (added) added = allow(ruleset, path, kRead);
  }
  for (const std::string& path : readable) {
    if (added) added = allow(ruleset, path, kRead);
  }
  for (const char* const path : kWritable) {
    if (added) added = allow(ruleset, path, kRead | kChange);
  }
  if (added && !cache.empty()) added = allow(ruleset, cache, kRead | kChange | kMakeFolders);
  const bool restricted = added && ::syscall(SYS_landlock_restrict_self, ruleset, 0) == 0;
  const int error = errno;
  ::close(ruleset);
  if (!added) return added.error();
  if (!restricted) return failure("cannot restrict a worker's files", error);
  return std::string();
}

}  // namespace gpupool::worker::sandbox
