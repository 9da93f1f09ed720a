// For files that several processes read and write at the same time: a lock with a limit for the wait, and
// reads and writes of whole buffers at an offset, whatever signals arrive. Used by the client's timeline and
// softgpu's cache of compiled code. No state, any thread. Failures are return values, and errno tells why.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace gpupool::files {

// The owner of a lock. A lock of the open file (F_OFD_SETLK) is shared with forked processes and with those
// that get the descriptor. A lock of the process (F_SETLK) is not, and ends when the process closes any
// descriptor of the file.
enum class LockOwner : int { process = F_SETLK, open_file = F_OFD_SETLK };

// Locks a whole file for writing, for the lifetime of this object.
class FileLock {
 public:
  // Waits at most `longest`: another process may have been stopped while it holds the lock.
  FileLock(int file, LockOwner owner, std::chrono::milliseconds longest) : file_(file), owner_(owner) {
    const auto end = std::chrono::steady_clock::now() + longest;
    while (!(held_ = change(F_WRLCK)) && (errno == EAGAIN || errno == EACCES || errno == EINTR) &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~FileLock() {
    if (held_) (void)change(F_UNLCK);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  bool held() const { return held_; }

 private:
  bool change(short type) const {
    struct flock whole {};
    whole.l_type = type;
    whole.l_whence = SEEK_SET;
    return ::fcntl(file_, static_cast<int>(owner_), &whole) == 0;
  }
  const int file_;
  const LockOwner owner_;
  bool held_ = false;
};

// Returns the number of bytes read, fewer than asked for only at the end of the file; -1: failed.
inline ssize_t read_at(int file, void* to, size_t bytes, uint64_t offset) {
  size_t got = 0;
  while (got < bytes) {
    const ssize_t more =
        ::pread(file, static_cast<char*>(to) + got, bytes - got, static_cast<off_t>(offset + got));
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return -1;
    if (more == 0) break;
    got += static_cast<size_t>(more);
  }
  return static_cast<ssize_t>(got);
}

// Returns false if not all bytes could be written.
inline bool write_at(int file, const void* from, size_t bytes, uint64_t offset) {
  size_t put = 0;
  while (put < bytes) {
    const ssize_t more =
        ::pwrite(file, static_cast<const char*>(from) + put, bytes - put, static_cast<off_t>(offset + put));
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return false;
    put += static_cast<size_t>(more);
  }
  return true;
}

}  // namespace gpupool::files
