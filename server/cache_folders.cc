#include "server/cache_folders.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

namespace gpupool::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kParent = "/dev/shm";
constexpr const char* kPrefix = "gpupool-cache-";
constexpr const char* kLock = "lock";  // locked by poold as long as it runs

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

// Removes what is in the folder. The driver's subfolders belong to the worker's user, and root may lack the capability to change
// them (examples/systemd/poold.service), so the calling thread takes that user's identity for files meanwhile.
void empty(int folder, uid_t worker_user) {
  const auto before = static_cast<uid_t>(::setfsuid(worker_user));
  std::error_code status;
  fs::directory_iterator entry("/proc/self/fd/" + std::to_string(folder), status);
  while (!status && entry != fs::directory_iterator()) {
    const fs::path path = entry->path();
    entry.increment(status);
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  ::setfsuid(before);
}

void remove_root(const std::string& path, uid_t worker_user) {
  ::chmod(path.c_str(), 0700);
  std::error_code status;
  for (fs::directory_iterator entry(path, status); !status && entry != fs::directory_iterator(); entry.increment(status)) {
    const int folder = ::open(entry->path().c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) continue;
    empty(folder, worker_user);
    ::close(folder);
  }
  fs::remove_all(path, status);
}

// Removes what a poold of this user left that was killed.
void remove_stale(uid_t worker_user) {
  std::error_code status;
  for (fs::directory_iterator entry(kParent, status); !status && entry != fs::directory_iterator(); entry.increment(status)) {
    const std::string path = entry->path();
    struct stat found {};
    if (!entry->path().filename().string().starts_with(kPrefix) || ::lstat(path.c_str(), &found) != 0) continue;
    if (!S_ISDIR(found.st_mode) || found.st_uid != ::geteuid()) continue;
    const int lock = ::open((path + "/" + kLock).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0) continue;
    if (::flock(lock, LOCK_EX | LOCK_NB) == 0) remove_root(path, worker_user);
    ::close(lock);
  }
}

uid_t files_user(const std::string& worker_user) {
  const passwd* const found = ::geteuid() == 0 && !worker_user.empty() ? ::getpwnam(worker_user.c_str()) : nullptr;
  return found ? found->pw_uid : ::geteuid();
}

}  // namespace

struct CacheFolders::Root {
  Root(int folder, int lock, uid_t worker_user) : folder(folder), lock(lock), worker_user(worker_user) {}
  ~Root() {
    ::close(folder);
    ::close(lock);
  }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  void remove(const Folder& gone) const {
    empty(gone.descriptor, worker_user);
    ::close(gone.descriptor);
    ::unlinkat(folder, gone.name.c_str(), AT_REMOVEDIR);
  }

  const int folder;
  const int lock;
  const uid_t worker_user;
};

Result<std::unique_ptr<CacheFolders>> CacheFolders::open(const std::string& worker_user) {
  if (::geteuid() == 0 && worker_user.empty()) return Error{ErrorCode::unavailable, "workers are root and could read all tenants' folders"};
  const uid_t user = files_user(worker_user);
  const std::string path = std::string(kParent) + "/" + kPrefix + random_name();
  if (::mkdir(path.c_str(), 0700) != 0) return cannot_make(path, errno);
  const int lock = ::open((path + "/" + kLock).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool locked = lock >= 0 && ::flock(lock, LOCK_EX | LOCK_NB) == 0;
  const int folder = ::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  // Unlisted for the user's other processes, too: workers, which may not change modes.
  if (!locked || folder < 0 || ::chmod(path.c_str(), 0300) != 0) {
    const int error = errno;
    if (lock >= 0) ::close(lock);
    if (folder >= 0) ::close(folder);
    remove_root(path, user);
    return cannot_make(path, error);
  }
  std::thread([user] { remove_stale(user); }).detach();  // not before this one is locked
  return std::unique_ptr<CacheFolders>(new CacheFolders(path, std::make_shared<const Root>(folder, lock, user)));
}

CacheFolders::~CacheFolders() { remove_root(path_, root_->worker_user); }

CacheFolders::Folder CacheFolders::make() {
  Folder made{random_name()};
  if (made.name.empty() || ::mkdirat(root_->folder, made.name.c_str(), 0700) != 0) return made;
  made.descriptor = ::openat(root_->folder, made.name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  // For whatever user workers are: whoever has not been given the descriptor does not get past the root folder.
  if (made.descriptor >= 0 && ::fchmod(made.descriptor, 0777) == 0) return made;
  if (made.descriptor >= 0) ::close(std::exchange(made.descriptor, -1));
  ::unlinkat(root_->folder, made.name.c_str(), AT_REMOVEDIR);
  return made;
}

void CacheFolders::remove(Folder folder) {
  if (folder.descriptor < 0) return;
  std::thread([root = root_, gone = std::move(folder)] { root->remove(gone); }).detach();
}

void CacheFolders::remove_now(const Folder& folder) {
  if (folder.descriptor >= 0) root_->remove(folder);
}

}  // namespace gpupool::server
