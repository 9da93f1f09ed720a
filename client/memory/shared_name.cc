#include "client/memory/shared_name.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "client/process/log.h"
#include "client/session/replies.h"

namespace gpupool::client {

CUresult read_name(const void* bytes, SharedKind kind, wire::SharedName* name, Session** session) {
  std::memcpy(name, bytes, sizeof *name);
  if (!is_shared_name(*name, static_cast<uint32_t>(kind))) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& one : sessions()) {
    if (one->server_id() != name->server) continue;
    *session = one.get();
    return CUDA_SUCCESS;
  }
  log_error(
      "cannot open memory or an event of another process: it is on a server with which this process has no "
      "session "
      "(or which was restarted); both processes must use the same server");
  return CUDA_ERROR_NOT_SUPPORTED;
}

int write_name_file(const wire::SharedName& name) {
  const int file = ::memfd_create("gpupool-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return -1;
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (::pwrite(file, &name, sizeof name, 0) == sizeof name && ::fcntl(file, F_ADD_SEALS, kSeals) == 0)
    return file;
  ::close(file);
  return -1;
}

bool read_name_file(int descriptor, wire::SharedName* bytes) {
  return ::pread(descriptor, bytes, sizeof *bytes, 0) == sizeof *bytes;
}

namespace {
std::atomic<bool> shared{false};
}  // namespace

void note_shared_memory() {
  shared.store(true, std::memory_order_relaxed);
}
bool memory_is_shared() {
  return shared.load(std::memory_order_relaxed);
}

}  // namespace gpupool::client
