// A process that locks, checkpoints, restores and unlocks itself, in valid and invalid orders, and calls with
// invalid arguments.
#include <cuda.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>

#include "tests/parity/show.h"

namespace parity {

void checkpoints() {
#if CUDA_VERSION >= 13000
  const int self = ::getpid();
  constexpr int kNobody = 999'999'999;  // larger than any process id
  CUprocessState state{};
  int thread = 0;
  CUcheckpointLockArgs lock{};
  CUcheckpointCheckpointArgs checkpoint{};
  CUcheckpointRestoreArgs restore{};
  CUcheckpointUnlockArgs unlock{};
  SHOW(cuCheckpointProcessGetState(self, nullptr));
  SHOW(cuCheckpointProcessGetRestoreThreadId(self, nullptr));
  for (const int pid : {kNobody, 0, -1}) {
    SHOW(cuCheckpointProcessGetState(pid, &state));
    SHOW(cuCheckpointProcessGetRestoreThreadId(pid, &thread));
    SHOW(cuCheckpointProcessLock(pid, nullptr));
    SHOW(cuCheckpointProcessCheckpoint(pid, nullptr));
    SHOW(cuCheckpointProcessRestore(pid, nullptr));
    SHOW(cuCheckpointProcessUnlock(pid, nullptr));
  }
  lock.reserved0 = 1;
  SHOW(cuCheckpointProcessLock(self, &lock));
  lock.reserved0 = 0, lock.reserved1[6] = 1;
  SHOW(cuCheckpointProcessLock(self, &lock));
  checkpoint.reserved[7] = 1;
  SHOW(cuCheckpointProcessCheckpoint(self, &checkpoint));
  unlock.reserved[0] = 1;
  SHOW(cuCheckpointProcessUnlock(self, &unlock));
  restore.reserved1 = 1;
  SHOW(cuCheckpointProcessRestore(self, &restore));
  restore.reserved1 = 0, restore.gpuPairsCount = 1;
  SHOW(cuCheckpointProcessRestore(self, &restore));
  CUcheckpointGpuPair pair{};
  std::memset(&pair, 7, sizeof pair);
  restore.gpuPairs = &pair;
  SHOW(cuCheckpointProcessRestore(self, &restore));
  lock = {}, checkpoint = {}, unlock = {};

  CUdeviceptr memory = 0;
  unsigned value = 0;
  SHOW(cuMemAlloc(&memory, 1 << 20));
  SHOW(cuMemsetD32(memory, 77, 1 << 18));
  SHOW_VALUE(cuCheckpointProcessGetState(self, &state), "%d", state);
  SHOW_VALUE(cuCheckpointProcessGetRestoreThreadId(self, &thread), "%d", thread > 0);
  SHOW(cuCheckpointProcessCheckpoint(self, nullptr));
  SHOW(cuCheckpointProcessRestore(self, nullptr));
  SHOW(cuCheckpointProcessUnlock(self, nullptr));
  lock.timeoutMs = 10'000;
  SHOW(cuCheckpointProcessLock(self, &lock));
  SHOW_VALUE(cuCheckpointProcessGetState(self, &state), "%d", state);
  SHOW(cuCheckpointProcessLock(self, nullptr));
  SHOW(cuCheckpointProcessRestore(self, nullptr));
  SHOW(cuCheckpointProcessCheckpoint(self, &checkpoint));
  SHOW_VALUE(cuCheckpointProcessGetState(self, &state), "%d", state);
  SHOW_VALUE(cuCheckpointProcessGetRestoreThreadId(self, &thread), "%d", thread > 0);
  SHOW(cuCheckpointProcessLock(self, nullptr));
  SHOW(cuCheckpointProcessCheckpoint(self, nullptr));
  SHOW(cuCheckpointProcessUnlock(self, nullptr));
  restore = {};
  SHOW(cuCheckpointProcessRestore(self, &restore));
  SHOW_VALUE(cuCheckpointProcessGetState(self, &state), "%d", state);
  SHOW(cuCheckpointProcessUnlock(self, &unlock));
  SHOW_VALUE(cuCheckpointProcessGetState(self, &state), "%d", state);
  SHOW_VALUE(cuMemcpyDtoH(&value, memory + (1 << 20) - 4, 4), "%u", value);
  SHOW(cuMemFree(memory));

  // Restores to the same GPU, named explicitly.
  SHOW(cuDeviceGetUuid(&pair.oldUuid, 0));
  pair.newUuid = pair.oldUuid;
  restore.gpuPairs = &pair, restore.gpuPairsCount = 1;
  SHOW(cuCheckpointProcessLock(self, nullptr));
  SHOW(cuCheckpointProcessCheckpoint(self, nullptr));
  SHOW(cuCheckpointProcessRestore(self, &restore));
  SHOW(cuCheckpointProcessUnlock(self, nullptr));
#endif
}

}  // namespace parity
