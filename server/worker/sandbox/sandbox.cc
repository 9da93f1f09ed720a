#include "server/worker/sandbox/sandbox.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <optional>
#include <system_error>
#include <vector>

namespace gpupool::worker::sandbox {
namespace {

// How long to wait for processes of a killed poold, which the kernel is ending.
constexpr std::chrono::milliseconds kPatience{3'000};
constexpr int kPause = 20;             // milliseconds between checks
constexpr rlim_t kMostThreads = 4096;  // a driver and a session use a few dozen

struct Identity {
  uid_t user = 0;
  gid_t group = 0;
};

Error failure(const std::string& what, int error) {
  return {ErrorCode::unavailable, what + ": " + std::generic_category().message(error)};
}

Result<Identity> find_user(const std::string& name) {
  uid_t number = 0;
  const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
  // A number needs no entry in the user database. Its group is the one of the same number, which other
  // workers do not have.
  if (read.ec == std::errc() && read.ptr == name.data() + name.size()) return Identity{number, number};
  const passwd* const found = ::getpwnam(name.c_str());
  if (!found)
    return Error{ErrorCode::invalid, "no user named '" + name + "' for workers; set --worker-users"};
  return Identity{found->pw_uid, found->pw_gid};
}

Result<void> become(const std::string& user) {
  const auto wanted = find_user(user);
  if (!wanted) return wanted.error();
  std::vector<gid_t> groups{wanted->group};
  for (const char* const name : {"video", "render"}) {
    if (const ::group* const group = ::getgrnam(name)) groups.push_back(group->gr_gid);
  }
  const uid_t uid = wanted->user;
  const gid_t gid = wanted->group;
  if (::setgroups(groups.size(), groups.data()) != 0 || ::setresgid(gid, gid, gid) != 0 ||
      ::setresuid(uid, uid, uid) != 0) {
    return failure("cannot change to user '" + user + "'", errno);
  }
  return {};
}

Result<std::optional<pid_t>> other_process_of(uid_t user, int processes) {
  const int folder = ::openat(processes, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // closed by closedir()
  DIR* const list = folder >= 0 ? ::fdopendir(folder) : nullptr;
  if (!list) return failure("cannot read /proc to check for other processes of the worker's user", errno);
  std::optional<pid_t> other;
  while (const dirent* const entry = other ? nullptr : ::readdir(list)) {
    const std::string name = entry->d_name;
    pid_t process = 0;
    struct stat status {};
    if (std::from_chars(name.data(), name.data() + name.size(), process).ec != std::errc() ||
        process == ::getpid())
      continue;
    if (::fstatat(folder, name.c_str(), &status, 0) == 0 && status.st_uid == user) other = process;
  }
  ::closedir(list);
  return other;
}

// Removes files that earlier sessions left in /dev/shm: sessions of different tenants use the same user one
// after another.
void remove_leftovers(uid_t user) {
  DIR* const memory = ::opendir("/dev/shm");
  if (!memory) return;
  while (const dirent* const entry = ::readdir(memory)) {
    struct stat status {};
    if (::fstatat(::dirfd(memory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(status.st_mode) && status.st_uid == user) {
      ::unlinkat(::dirfd(memory), entry->d_name, 0);
    }
  }
  ::closedir(memory);
}

}  // namespace

Result<void> drop_user(const std::string& user) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  if (::geteuid() == 0 && !user.empty()) {
    rlimit locked{RLIM_INFINITY, RLIM_INFINITY};
    // In a container, root may lack this right.
    if (::setrlimit(RLIMIT_MEMLOCK, &locked) != 0 && ::getrlimit(RLIMIT_MEMLOCK, &locked) == 0) {
      locked.rlim_cur = locked.rlim_max;
      ::setrlimit(RLIMIT_MEMLOCK, &locked);
    }
    if (auto changed = become(user); !changed) return changed;
  }
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return failure("cannot set PR_SET_NO_NEW_PRIVS", errno);
  return hide_memory();
}

Result<void> hide_memory() {
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
    return failure("cannot make the process non-dumpable (PR_SET_DUMPABLE)", errno);
  return {};
}

Result<void> claim_user(int processes) {
  const uid_t user = ::getuid();
  // Counted per user: workers with a common user would exhaust it for each other.
  const rlimit threads{kMostThreads, kMostThreads};
  ::setrlimit(RLIMIT_NPROC, &threads);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    const auto other = other_process_of(user, processes);
    if (!other) return other.error();
    if (!*other) break;
    if (std::chrono::steady_clock::now() > deadline) {
      return Error{ErrorCode::unavailable,
                   "user " + std::to_string(user) + " must be exclusive to one worker, but process " +
                       std::to_string(**other) +
                       " runs as it; give each poold its own range of unused users (--worker-users)"};
    }
    ::poll(nullptr, 0, kPause);
  }
  remove_leftovers(user);
  return {};
}

}  // namespace gpupool::worker::sandbox
