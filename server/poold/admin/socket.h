// A listening Unix socket at a path, owned by one process at a time: the socket of a dead process is
// replaced, that of a running one is not. A process owns the socket while it holds the lock on PATH.lock.
// poold uses it.
#pragma once
#include <string>

#include "common/result.h"

namespace gpupool::server {

class OwnedSocket {
 public:
  // Listens at `path`, for this user and root only. Makes missing folders, for this user only.
  // ErrorCode::invalid: the path is too long, exists and is no socket, or is in another user's folder;
  // refused: a running process owns the socket; unavailable: a system call failed.
  static Result<OwnedSocket> listen(const std::string& path);
  OwnedSocket(OwnedSocket&& other) noexcept;
  OwnedSocket& operator=(OwnedSocket&&) = delete;
  ~OwnedSocket();  // removes the socket

  int descriptor() const { return socket_; }
  const std::string& path() const { return path_; }

 private:
  OwnedSocket(std::string path, int lock, int socket)
      : path_(std::move(path)), lock_(lock), socket_(socket) {}
  std::string path_;
  int lock_;
  int socket_;
};

}  // namespace gpupool::server
