// Checkpoints another CUDA process (moves its device memory to the host) and restores it, with
// cuCheckpointProcess*() of CUDA 12.8 and later:
//
//   checkpoint --pid N --action lock|checkpoint|restore|unlock [--timeout MS]     one step
//   checkpoint --pid N --toggle                                   checkpoint if it is running, else restore
//   checkpoint --pid N --get-state
//
// Prints the resulting state; exits with EXIT_FAILURE if a call fails.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#if CUDA_VERSION >= 12080
namespace {

constexpr const char* kStates[] = {"running", "locked", "checkpointed", "failed"};

[[noreturn]] void usage() {
  std::fputs(
      "usage: checkpoint --pid N (--toggle | --get-state | --action lock|checkpoint|restore|unlock "
      "[--timeout MS])\n",
      stderr);
  std::exit(2);
}

void check(CUresult result, const char* doing) {
  if (result == CUDA_SUCCESS) return;
  const char* text = "unknown error";
  cuGetErrorString(result, &text);
  std::fprintf(stderr, "checkpoint: %s: %s\n", doing, text);
  std::exit(EXIT_FAILURE);
}

void act(const std::string& action, int pid, unsigned timeout) {
  CUcheckpointLockArgs lock{};
  lock.timeoutMs = timeout;
  if (action == "lock") return check(cuCheckpointProcessLock(pid, &lock), "lock");
  if (action == "checkpoint") return check(cuCheckpointProcessCheckpoint(pid, nullptr), "checkpoint");
  if (action == "restore") return check(cuCheckpointProcessRestore(pid, nullptr), "restore");
  if (action == "unlock") return check(cuCheckpointProcessUnlock(pid, nullptr), "unlock");
  usage();
}

}  // namespace

int main(int count, char** words) {
  std::string action;
  int pid = 0;
  unsigned timeout = 0;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const bool more = i + 1 < count;
    if (word == "--toggle" || word == "--get-state")
      action = word;
    else if (word == "--action" && more)
      action = words[++i];
    else if (word == "--pid" && more)
      pid = std::atoi(words[++i]);
    else if (word == "--timeout" && more)
      timeout = static_cast<unsigned>(std::strtoul(words[++i], nullptr, 10));
    else
      usage();
  }
  if (action.empty() || pid <= 0) usage();
  check(cuInit(0), "cuInit");
  CUprocessState state{};
  if (action == "--toggle") {
    check(cuCheckpointProcessGetState(pid, &state), "state");
    const bool out = state == CU_PROCESS_STATE_RUNNING;
    act(out ? "lock" : "restore", pid, timeout);
    act(out ? "checkpoint" : "unlock", pid, timeout);
  } else if (action != "--get-state") {
    act(action, pid, timeout);
  }
  check(cuCheckpointProcessGetState(pid, &state), "state");
  std::printf("%s\n", static_cast<unsigned>(state) < 4 ? kStates[state] : "unknown");
}
#else
int main() {
  std::fputs("checkpoint: built without checkpoint support; needs cuda.h of CUDA 12.8 or newer\n", stderr);
  return EXIT_FAILURE;
}
#endif
