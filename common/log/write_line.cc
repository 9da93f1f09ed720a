#include "common/log/write_line.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace gpupool::log {

bool write_line(int descriptor, std::string_view line) {
  return write_rest(descriptor, line);
}

bool write_rest(int descriptor, std::string_view& line) {
  while (!line.empty()) {
    const ssize_t written = ::write(descriptor, line.data(), line.size());
    if (written > 0) {
      line.remove_prefix(static_cast<size_t>(written));
    } else if (written < 0 &&
               errno == EAGAIN) {  // another process that shares the descriptor has set O_NONBLOCK
      pollfd polled{descriptor, POLLOUT, 0};
      ::poll(&polled, 1, -1);
    } else if (written == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace gpupool::log
