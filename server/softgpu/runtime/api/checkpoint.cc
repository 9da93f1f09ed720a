// cuCheckpointProcess... of this process. Another process gives CUDA_ERROR_NOT_SUPPORTED; poold has its
// workers checkpoint their own sessions.
#include "protocol/calls/checkpoint_args.h"

#if CUDA_VERSION >= 12080
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "server/softgpu/runtime/api/call.h"

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

// In place of call(), which blocks while the process is locked.
template <class Body>
CUresult with_process(int pid, bool fits, const Body& body) noexcept {
  if (const CUresult state = runtime().state(); state != CUDA_SUCCESS) return state;
  if (!fits || pid <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (pid != ::getpid())
    return ::kill(pid, 0) == 0 || errno == EPERM ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  try {
    return body(runtime().process_state());
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

}  // namespace

CUDA_EXPORT CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  return with_process(pid, cuda::fits(args),
                      [&](ProcessState& state) { return state.lock(args ? args->timeoutMs : 0); });
}

CUDA_EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
  return with_process(pid, cuda::fits(args), [](ProcessState& state) { return state.checkpoint(); });
}

CUDA_EXPORT CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  if (const CUresult state = runtime().state(); state != CUDA_SUCCESS) return state;
  const CUresult fit = cuda::check_restore(args, [](const CUuuid& uuid) {
    for (const auto& device : runtime().devices()) {
      if (std::memcmp(device->uuid().bytes, uuid.bytes, sizeof uuid.bytes) == 0) return true;
    }
    return false;
  });
  if (fit != CUDA_SUCCESS) return fit;
  return with_process(pid, true, [](ProcessState& state) { return state.restore(); });
}

CUDA_EXPORT CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) {
  return with_process(pid, cuda::fits(args), [](ProcessState& state) { return state.unlock(); });
}

CUDA_EXPORT CUresult cuCheckpointProcessGetState(int pid, CUprocessState* value) {
  return with_process(pid, value != nullptr, [&](ProcessState& state) {
    *value = static_cast<CUprocessState>(state.get());
    return CUDA_SUCCESS;
  });
}

// No particular thread is needed to restore the process: return the main one.
CUDA_EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  return with_process(pid, tid != nullptr, [&](ProcessState&) {
    *tid = pid;
    return CUDA_SUCCESS;
  });
}
#endif
