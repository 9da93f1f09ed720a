#include "tests/support/slow_file.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace gpupool::testing {

SlowFile::SlowFile() {
  folder_.write("file", "");
  device_ = ::open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (device_ < 0)
    throw std::runtime_error(std::string("/dev/fuse cannot be opened: ") + std::strerror(errno));
  // The mount point is a file: the file system's root is a regular file.
  const std::string options =
      "fd=" + std::to_string(device_) + ",rootmode=100000,user_id=0,group_id=0,allow_other";
  if (::mount("slow_file", path().c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    const int error = errno;
    ::close(device_);
    throw std::runtime_error(std::string("a FUSE file system cannot be mounted: ") + std::strerror(error));
  }
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  server_ = std::thread([this] { serve(); });
}

SlowFile::~SlowFile() {
  ::umount2(path().c_str(), MNT_DETACH);
  const uint64_t one = 1;
  (void)!::write(stop_, &one, sizeof one);
  server_.join();
  ::close(device_);  // blocked requests fail
  ::close(stop_);
}

void SlowFile::serve() {
  std::vector<char> bytes(256 * 1024);
  while (true) {
    pollfd polled[2] = {{device_, POLLIN, 0}, {stop_, POLLIN, 0}};
    ::poll(polled, 2, -1);
    if (polled[1].revents != 0) return;
    const ssize_t got = ::read(device_, bytes.data(), bytes.size());
    if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) {
      if (got < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOENT)) continue;
      return;
    }
    fuse_in_header request;
    std::memcpy(&request, bytes.data(), sizeof request);
    if (request.opcode == FUSE_INIT) {
      fuse_init_out out{};
      out.major = FUSE_KERNEL_VERSION;
      out.minor = FUSE_KERNEL_MINOR_VERSION;
      out.max_write = 4096;
      answer(request.unique, &out, sizeof out);
    } else if (request.opcode == FUSE_GETATTR) {
      fuse_attr_out out{};
      out.attr_valid = 3600;
      out.attr.ino = 1;
      out.attr.mode = S_IFREG | 0666;
      out.attr.nlink = 1;
      answer(request.unique, &out, sizeof out);
    } else if (request.opcode == FUSE_OPEN) {
      const fuse_open_out out{};
      answer(request.unique, &out, sizeof out);
    } else if (request.opcode == FUSE_FLUSH) {
      unanswered_ = true;
    }
  }
}

void SlowFile::answer(uint64_t request, const void* body, size_t bytes) const {
  fuse_out_header header{};
  header.len = static_cast<uint32_t>(sizeof header + bytes);
  header.unique = request;
  const iovec parts[2] = {{&header, sizeof header}, {const_cast<void*>(body), bytes}};
  (void)!::writev(device_, parts, 2);
}

}  // namespace gpupool::testing
