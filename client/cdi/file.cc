#include "client/cdi/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include "common/descriptor.h"

namespace gpupool::cdi {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = 4u << 20;
constexpr std::chrono::seconds kLockTimeout{5};

Error failed(const fs::path& path, const char* what, int error) {
  std::string message =
      "cannot " + std::string(what) + " " + path.string() + ": " + std::generic_category().message(error);
  if (error == EACCES || error == EPERM || error == EROFS)
    message += "; run pool-cdi as root, or choose another file with --output";
  return {ErrorCode::unavailable, message};
}

// Returns 0 or an errno.
int write_all(int file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(file, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    done += static_cast<size_t>(written);
  }
  return ::fchmod(file, 0644) != 0 || ::fsync(file) != 0 ? errno : 0;
}

// Engines read files whose names end in .json or .yaml: the temporary name ends otherwise.
Result<void> replace(const fs::path& path, const std::string& text) {
  std::string temporary = path.string() + ".XXXXXX";
  const Descriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (file.number() < 0) return failed(path, "write", errno);
  int error = write_all(file.number(), text);
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  ::unlink(temporary.c_str());
  return failed(path, "write", error);
}

// Waits for the lock of a folder. It ends with the descriptor. Every user who can read the folder can lock
// it, so the wait is limited.
Result<Descriptor> lock_folder(const fs::path& folder) {
  Descriptor held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (held.number() < 0) return failed(folder, "open the folder", errno);
  const auto deadline = std::chrono::steady_clock::now() + kLockTimeout;
  while (::flock(held.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return failed(folder, "lock the folder", errno);
    if (std::chrono::steady_clock::now() >= deadline) {
      return Error{ErrorCode::unavailable,
                   "cannot lock the folder " + folder.string() + ": a process has held its lock for " +
                       std::to_string(kLockTimeout.count()) + " s; end the process that lslocks shows"};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return held;
}

}  // namespace

Result<std::optional<std::string>> read_file(const fs::path& path) {
  // O_NONBLOCK: opening a FIFO would wait for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.number() < 0) {
    if (errno == ENOENT) return std::optional<std::string>();
    return failed(path, "read", errno);
  }
  struct stat about {};
  if (::fstat(file.number(), &about) != 0) return failed(path, "read", errno);
  if (!S_ISREG(about.st_mode)) return Error{ErrorCode::invalid, path.string() + " is not a regular file"};
  std::string text;
  char part[16384];
  while (text.size() <= kMostBytes) {
    const ssize_t length = ::read(file.number(), part, sizeof part);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return failed(path, "read", errno);
    if (length == 0) return std::optional(std::move(text));
    text.append(part, static_cast<size_t>(length));
  }
  return Error{ErrorCode::limit, path.string() + " is larger than 4 MiB, so pool-cdi did not write it"};
}

Result<void> update_file(const fs::path& path, bool make_folder, const Update& update) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  if (make_folder && !fs::is_directory(folder, error)) {
    fs::create_directories(folder, error);
    if (error) return failed(folder, "create the folder", error.value());
    ::chmod(folder.c_str(), 0755);  // other users' engines read it, whatever the umask is
  }
  const auto lock = lock_folder(folder);
  if (!lock) return lock.error();
  const auto present = read_file(path);
  if (!present) return present.error();
  const auto fresh = update(*present);
  if (!fresh) return fresh.error();
  if (fresh->has_value()) return replace(path, **fresh);
  if (present->has_value() && ::unlink(path.c_str()) != 0) return failed(path, "remove", errno);
  return {};
}

}  // namespace gpupool::cdi
