#include "server/poold/workers/cache_folders.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <future>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/blocked_signals.h"
#include "common/log/log.h"

namespace gpupool::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kParent = "/dev/shm";
constexpr const char* kPrefix = "gpupool-cache-";
constexpr std::chrono::seconds kLastPatience{2};
constexpr const char* kLock = "lock";  // locked while poold runs

Error cannot_make(const std::string& path, int error) {
  return {ErrorCode::unavailable, "cannot make '" + path + "': " + std::generic_category().message(error)};
}

std::string random_name() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
  std::string name;
  for (const unsigned char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    name += digits;
  }
  return name;
}

// Runs `work` on a detached thread. Returns false if no thread can be started, for instance because workers
// use all that the host allows. Folders then stay until the next poold starts.
bool in_background(std::function<void()> work) {
  const BlockedSignals blocked;
  try {
    std::thread(std::move(work)).detach();
    return true;
  } catch (const std::system_error& failure) {
    log::warning("cache_folder_left", {{"reason", failure.what()}});
    return false;
  }
}

// Sets the calling thread's file system user ID to the owner's. Files that workers made belong to the
// workers' users, and root may lack the capability to change them (poold.service).
class AsOwner {
 public:
  explicit AsOwner(uid_t owner) : before_(static_cast<uid_t>(::setfsuid(owner))) {}
  ~AsOwner() { ::setfsuid(before_); }
  AsOwner(const AsOwner&) = delete;
  AsOwner& operator=(const AsOwner&) = delete;

 private:
  const uid_t before_;
};

constexpr int kDeepest = 16;  // limit of recursion; the driver's folders are two deep
constexpr int kMostRounds = 4096;

// Calls `use` with each name in the folder.
template <class Use>
void for_each_name(int folder, const Use& use) {
  const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // closedir() closes it
  DIR* const list = own >= 0 ? ::fdopendir(own) : nullptr;
  if (!list) {
    if (own >= 0) ::close(own);
    return;
  }
  while (const dirent* const entry = ::readdir(list)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") use(entry->d_name);
  }
  ::closedir(list);
}

// Opens a folder that a worker made, whatever its mode. Returns -1 if there is none.
int open_folder(int parent, const char* name, uid_t& owner) {
  struct stat status {};
  if (::fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(status.st_mode)) return -1;
  owner = status.st_uid;
  const AsOwner identity(owner);
  (void)!::fchmodat(parent, name, 0777, AT_SYMLINK_NOFOLLOW);  // otherwise it may not open
  return ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// Removes everything in `folder`. The calling thread must have the identity of the folder's owner. Returns
// true if folders deeper than kDeepest were moved to `top`, for another round.
bool empty(int top, int folder, int depth) {
  bool moved = false;
  for_each_name(folder, [&](const char* name) {
    uid_t owner = 0;
    const int inner = open_folder(folder, name, owner);
    if (inner >= 0 && depth < kDeepest) {
      const AsOwner identity(owner);
      moved |= empty(top, inner, depth + 1);
    } else if (inner >= 0) {
      moved |= ::renameat(folder, name, top, random_name().c_str()) == 0;
    }
    if (inner >= 0) ::close(inner);
    ::unlinkat(folder, name, inner >= 0 ? AT_REMOVEDIR : 0);
  });
  return moved;
}

void empty(int folder) {
  struct stat status {};
  if (::fstat(folder, &status) != 0) return;
  const AsOwner identity(status.st_uid);
  for (int round = 0; round < kMostRounds && empty(folder, folder, 0); ++round) {
  }
}

// Makes `user`'s files in the folder readable and writable for everyone who can reach them.
void open_to_all(int folder, uid_t user, int depth = 0) {
  for_each_name(folder, [&](const char* name) {
    struct stat status {};
    const int made = ::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (made < 0) return;
    const bool known = ::fstat(made, &status) == 0, is_folder = known && S_ISDIR(status.st_mode);
    if (status.st_uid == user && (is_folder || S_ISREG(status.st_mode)))
      ::fchmod(made, is_folder ? 0777 : 0666);
    if (is_folder && depth < kDeepest) open_to_all(made, user, depth + 1);
    ::close(made);
  });
}

void remove_root(const std::string& path) {
  ::chmod(path.c_str(), 0700);
  std::error_code status;
  for (fs::directory_iterator entry(path, status); !status && entry != fs::directory_iterator();
       entry.increment(status)) {
    const int folder = ::open(entry->path().c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) continue;
    empty(folder);
    ::close(folder);
  }
  fs::remove_all(path, status);
}

// Removes root folders of killed poolds of this user.
void remove_stale() {
  std::error_code status;
  for (fs::directory_iterator entry(kParent, status); !status && entry != fs::directory_iterator();
       entry.increment(status)) {
    const std::string path = entry->path();
    struct stat found {};
    if (!entry->path().filename().string().starts_with(kPrefix) || ::lstat(path.c_str(), &found) != 0)
      continue;
    if (!S_ISDIR(found.st_mode) || found.st_uid != ::geteuid()) continue;
    const int lock = ::open((path + "/" + kLock).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0) continue;
    if (::flock(lock, LOCK_EX | LOCK_NB) == 0) remove_root(path);
    ::close(lock);
  }
}

}  // namespace

struct CacheFolders::Root {
  Root(int folder, int lock) : folder(folder), lock(lock) {}
  ~Root() {
    ::close(folder);
    ::close(lock);
  }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  void remove(const Folder& gone) const {
    empty(gone.descriptor);
    ::close(gone.descriptor);
    ::unlinkat(folder, gone.name.c_str(), AT_REMOVEDIR);
  }

  const int folder;
  const int lock;
};

Result<std::unique_ptr<CacheFolders>> CacheFolders::open(const std::string& worker_users) {
  if (::geteuid() == 0 && worker_users.empty()) {
    return Error{ErrorCode::unavailable, "workers run as root and could read all tenants' folders"};
  }
  const std::string path = std::string(kParent) + "/" + kPrefix + random_name();
  if (::mkdir(path.c_str(), 0700) != 0) return cannot_make(path, errno);
  const int lock = ::open((path + "/" + kLock).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool locked = lock >= 0 && ::flock(lock, LOCK_EX | LOCK_NB) == 0;
  const int folder = ::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  // Mode 0300 hides the names from workers, which may run as this user but must not change modes.
  if (!locked || folder < 0 || ::chmod(path.c_str(), 0300) != 0) {
    const int error = errno;
    if (lock >= 0) ::close(lock);
    if (folder >= 0) ::close(folder);
    remove_root(path);
    return cannot_make(path, error);
  }
  (void)in_background([] { remove_stale(); });  // only after this root is locked
  return std::unique_ptr<CacheFolders>(new CacheFolders(path, std::make_shared<const Root>(folder, lock)));
}

CacheFolders::~CacheFolders() {
  const auto removed = std::make_shared<std::promise<void>>();
  auto done = removed->get_future();
  const bool begun = in_background([path = path_, root = root_, removed] {
    remove_root(path);
    removed->set_value();
  });
  if (begun) (void)done.wait_for(kLastPatience);
}

CacheFolders::Folder CacheFolders::make() {
  Folder made{random_name()};
  if (made.name.empty() || ::mkdirat(root_->folder, made.name.c_str(), 0700) != 0) return made;
  made.descriptor =
      ::openat(root_->folder, made.name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  // Any user may access it: without the descriptor no worker gets past the root folder.
  if (made.descriptor >= 0 && ::fchmod(made.descriptor, 0777) == 0) return made;
  if (made.descriptor >= 0) ::close(std::exchange(made.descriptor, -1));
  ::unlinkat(root_->folder, made.name.c_str(), AT_REMOVEDIR);
  return made;
}

void CacheFolders::share(const Folder& folder, uid_t user) {
  const int own = folder.descriptor >= 0 ? ::fcntl(folder.descriptor, F_DUPFD_CLOEXEC, 0) : -1;
  if (own < 0) return;
  const bool begun = in_background([own, user] {
    {
      const AsOwner identity(user);
      open_to_all(own, user);
    }
    ::close(own);
  });
  if (!begun) ::close(own);
}

void CacheFolders::remove(Folder folder) {
  if (folder.descriptor < 0) return;
  if (!in_background([root = root_, folder] { root->remove(folder); })) ::close(folder.descriptor);
}

}  // namespace gpupool::server
