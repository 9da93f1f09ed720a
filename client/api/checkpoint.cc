// cuCheckpointProcess...: locks, checkpoints, restores and unlocks a process by its id: another process of
// the tenant on this machine, or this one. poold acts on that process's sessions (checkpoint.h); this
// process's own sessions are not used.
#include "protocol/calls/checkpoint_args.h"

#if CUDA_VERSION >= 12080
#include <dirent.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <fstream>

#include "client/session/call.h"
#include "client/session/checkpoint.h"
#include "client/session/command_queue.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

using wire::CheckpointAction;

template <class Body>
CUresult with_process(int pid, const Body& body) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (pid <= 0) return CUDA_ERROR_INVALID_VALUE;
    const auto servers = servers_now();
    if (!servers) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    std::optional<CheckpointedProcess> process;
    if (const CUresult result =
            CheckpointedProcess::find(settings_from_environment(), *servers, pid, &process);
        result != CUDA_SUCCESS)
      return result;
    return body(*process);
  });
}

template <class Args>
CUresult change(int pid, const Args* args, CheckpointAction action, unsigned timeout_ms = 0) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  if (!cuda::fits(args)) return CUDA_ERROR_INVALID_VALUE;
  return with_process(pid, [&](CheckpointedProcess& process) { return process.apply(action, timeout_ms); });
}

// Restoring needs no thread of the process, but the caller expects one that runs no code of the program:
// returns the library's flusher thread, or `pid` if there is none.
int thread_of_library(int pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/task/";
  int found = pid;
  if (DIR* const threads = ::opendir(folder.c_str())) {
    while (const dirent* const thread = ::readdir(threads)) {
      std::string name;
      std::ifstream file(folder + thread->d_name + "/comm");
      if (!std::getline(file, name) || name != CommandQueue::kThreadName) continue;
      std::from_chars(thread->d_name, thread->d_name + std::strlen(thread->d_name), found);
    }
    ::closedir(threads);
  }
  return found;
}

}  // namespace

CUDA_EXPORT CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  // Earlier calls of this process must take effect before the lock.
  if (pid == ::getpid() && ready() == CUDA_SUCCESS) {
    for (const auto& session : sessions()) session->queue().flush();
  }
  return change(pid, args, CheckpointAction::lock, args ? args->timeoutMs : 0);
}

CUDA_EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
  return change(pid, args, CheckpointAction::checkpoint);
}

CUDA_EXPORT CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  const CUresult fit = cuda::check_restore(args, [](const CUuuid& uuid) {
    return std::any_of(devices().begin(), devices().end(), [&](const auto& device) {
      return device->uuid.size() == sizeof uuid.bytes &&
             std::memcmp(device->uuid.data(), uuid.bytes, sizeof uuid.bytes) == 0;
    });
  });
  if (fit != CUDA_SUCCESS) return fit;
  return with_process(pid,
                      [&](CheckpointedProcess& process) { return process.apply(CheckpointAction::restore); });
}

CUDA_EXPORT CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) {
  return change(pid, args, CheckpointAction::unlock);
}

CUDA_EXPORT CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  return with_process(pid, [&](CheckpointedProcess& process) {
    *state = static_cast<CUprocessState>(process.state());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  if (!tid) return CUDA_ERROR_INVALID_VALUE;
  return with_process(pid, [&](CheckpointedProcess&) {
    *tid = thread_of_library(pid);
    return CUDA_SUCCESS;
  });
}
#endif
