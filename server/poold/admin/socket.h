// A listening Unix socket at a path, owned by one process at a time: the socket of a dead process is
// replaced, that of a running one is not. A process owns the socket while it holds the lock on PATH.lock.
// poold uses it.
#pragma once
#include <string>
#include <utility>

#include "common/result.h"

namespace gpupool::server {

class OwnedSocket {
 public:
  // Listens at `path`, for this user and root only. Makes missing folders, for this user only.
  // ErrorCode::invalid: the path is too long, exists and is no socket, or is in another user's folder;
  // refused: a running process owns the socket; unavailable: a system call failed.
  static Result<OwnedSocket> listen(const std::string& path);
  // Takes over the descriptors of a socket that this process's previous program has made
  // (server/poold/upgrade).
  static OwnedSocket take_over(std::string path, int lock, int socket) {
    return OwnedSocket(std::move(path), lock, socket);
  }
  OwnedSocket(OwnedSocket&& other) noexcept;
  OwnedSocket& operator=(OwnedSocket&&) = delete;
  ~OwnedSocket();  // removes the socket

  int descriptor() const { return socket_; }
  int lock() const { return lock_; }
  const std::string& path() const { return path_; }

 private:
  OwnedSocket(std::string path, int lock, int socket)
      : path_(std::move(path)), lock_(lock), socket_(socket) {}
  std::string path_;
  int lock_;
  int socket_;
};

}  // namespace gpupool::server
