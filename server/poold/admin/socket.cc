#include "server/poold/admin/socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "protocol/transport/socket/descriptors.h"
#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {
namespace {

constexpr int kBacklog = 16;

Error failure(const std::string& path, int error) {
  return {ErrorCode::unavailable,
          "cannot listen on '" + path + "': " + std::generic_category().message(error)};
}

std::string lock_path(const std::string& path) {
  return path + ".lock";
}

// Returns the lock's descriptor; -1: a running process holds the lock; -2: failure, with errno set.
int take_lock(const std::string& path) {
  while (true) {
    const int lock = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0) return -2;
    if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
      ::close(lock);
      return -1;
    }
    // The previous owner may have removed the file between open() and flock(): then this lock protects
    // nothing.
    struct stat ours {
    }, there{};
    if (::fstat(lock, &ours) == 0 && ::stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino &&
        ours.st_dev == there.st_dev) {
      return lock;
    }
    ::close(lock);
  }
}

}  // namespace

Result<OwnedSocket> OwnedSocket::listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error{ErrorCode::invalid, "'" + path + "' is not a valid path of a Unix socket: must have 1 to " +
                                         std::to_string(sizeof address.sun_path - 1) + " characters"};
  }
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::exists(folder, ignored)) {
    std::filesystem::create_directories(folder.parent_path(), ignored);
    ::mkdir(folder.c_str(), 0700);
  }
  // The owner of the folder can replace the socket.
  struct stat around {};
  const std::string above = folder.empty() ? "." : folder.string();
  if (::stat(above.c_str(), &around) != 0) return failure(path, errno);
  if (around.st_uid != 0 && around.st_uid != ::geteuid()) {
    return Error{ErrorCode::invalid,
                 "'" + above + "' belongs to another user; choose another path with --admin-socket"};
  }
  const int lock = take_lock(lock_path(path));
  if (lock == -1) {
    return Error{ErrorCode::refused, "another poold uses the admin socket '" + path +
                                         "'; choose another path with --admin-socket"};
  }
  if (lock < 0) return failure(path, errno);
  const auto give_up = [&](Error error, int socket) {
    if (socket >= 0) ::close(socket);
    ::unlink(lock_path(path).c_str());
    ::close(lock);
    return error;
  };
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode)) {
      return give_up(
          {ErrorCode::invalid,
           "'" + path +
               "' exists and is not a socket; remove it, or choose another path with --admin-socket"},
          -1);
    }
    ::unlink(path.c_str());  // left by a dead process: we hold its lock
  }
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return give_up(failure(path, errno), -1);
  transport::allow_descriptors(socket, false);
  // No client can connect before listen(), so chmod() comes in time.
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return give_up(failure(path, errno), socket);
  if (::chmod(path.c_str(), 0600) != 0 || ::listen(socket, kBacklog) != 0) {
    const Error error = failure(path, errno);
    ::unlink(path.c_str());
    return give_up(error, socket);
  }
  return OwnedSocket(path, lock, socket);
}

OwnedSocket::OwnedSocket(OwnedSocket&& other) noexcept
    : path_(std::move(other.path_)),
      lock_(std::exchange(other.lock_, -1)),
      socket_(std::exchange(other.socket_, -1)) {}

OwnedSocket::~OwnedSocket() {
  if (socket_ < 0) return;
  ::unlink(path_.c_str());
  close_without_blocking(socket_);
  ::unlink(lock_path(path_).c_str());
  ::close(lock_);
}

}  // namespace gpupool::server
