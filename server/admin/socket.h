// A listening Unix socket under a path of its own, for one process at a time: a socket that a dead process left is replaced, that
// of a living one is not. Who is who is decided by a lock on PATH.lock, which a process holds as long as it lives.
#pragma once
#include <string>

#include "protocol/wire/result.h"

namespace gpupool::server {

class OwnedSocket {
 public:
  // Only this user and root can connect. Folders that are missing are made, for this user alone. ErrorCode::invalid: the path is
  // too long, or something else is there; refused: a living process has it; unavailable: the system does not let us.
  static Result<OwnedSocket> listen(const std::string& path);
  OwnedSocket(OwnedSocket&& other) noexcept;
  OwnedSocket& operator=(OwnedSocket&&) = delete;
  ~OwnedSocket();  // the path is free again

  int descriptor() const { return socket_; }
  const std::string& path() const { return path_; }

 private:
  OwnedSocket(std::string path, int lock, int socket) : path_(std::move(path)), lock_(lock), socket_(socket) {}
  std::string path_;
  int lock_;
  int socket_;
};

}  // namespace gpupool::server
