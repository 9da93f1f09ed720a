#include "client/process/identity.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include "protocol/driver/cuda_header.h"
#include "protocol/wire/frame.h"

namespace gpupool::client {
namespace {

std::string link_target(const char* link) {
  char path[PATH_MAX];
  const ssize_t length = ::readlink(link, path, sizeof path);
  return std::string(path, length > 0 ? static_cast<size_t>(length) : 0);
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

// Identifies the PID namespace, by boot id and namespace. Process ids are comparable only within one.
std::string pid_space() {
  char boot[64];
  const int file = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  const ssize_t length = file >= 0 ? ::read(file, boot, sizeof boot) : 0;
  if (file >= 0) ::close(file);
  return std::string(boot, length > 0 ? static_cast<size_t>(length) : 0) + link_target("/proc/self/ns/pid");
}

}  // namespace

hello::Hello introduction() {
  const std::string program = link_target("/proc/self/exe");
  hello::Hello hello;
  hello.protocol_version = wire::kProtocolVersion;
  hello.client_version = GPUPOOL_VERSION;
  hello.cuda_version = CUDA_VERSION;
  hello.program = program.substr(program.rfind('/') + 1);
  hello.host = host_name();
  hello.pid = getpid();
  hello.pid_space = pid_space();
  return hello;
}

}  // namespace gpupool::client
