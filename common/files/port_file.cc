#include "common/files/port_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace gpupool {

Result<void> write_port_file(const std::string& path, uint16_t port) {
  const std::string temporary = path + "." + std::to_string(::getpid()) + ".tmp";
  const std::string text = std::to_string(port) + "\n";
  const auto failure = [&path](int error) {
    return Error{ErrorCode::unavailable,
                 "cannot write the port file '" + path + "': " + std::generic_category().message(error)};
  };
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return failure(errno);
  const bool written = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  ::close(file);
  if (written && ::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int last = written ? errno : error;
  ::unlink(temporary.c_str());
  return failure(last);
}

}  // namespace gpupool
