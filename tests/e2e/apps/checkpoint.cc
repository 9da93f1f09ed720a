// Programs that are locked and checkpointed while they compute, and one that does it to others (as NVIDIA's cuda-checkpoint does).
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "tests/e2e/apps/scenario.h"

#if CUDA_VERSION >= 12080
using namespace app;

namespace {

constexpr size_t kPiece = size_t{8} << 20;

bool is_there(const std::string& file) { return ::access(file.c_str(), F_OK) == 0; }

const char* text_of(CUprocessState state) {
  constexpr const char* kTexts[] = {"running", "locked", "checkpointed", "failed"};
  return static_cast<unsigned>(state) < 4 ? kTexts[state] : "no state";
}

CUresult act(const std::string& action, int pid, unsigned timeout_ms) {
  CUcheckpointLockArgs lock{};
  lock.timeoutMs = timeout_ms;
  if (action == "lock") return cuCheckpointProcessLock(pid, &lock);
  if (action == "checkpoint") return cuCheckpointProcessCheckpoint(pid, nullptr);
  if (action == "restore") return cuCheckpointProcessRestore(pid, nullptr);
  EXPECT(action == "unlock" || action == "state");
  return action == "unlock" ? cuCheckpointProcessUnlock(pid, nullptr) : CUDA_SUCCESS;
}

}  // namespace

// [pid, actions separated by commas, timeout in ms]: what each gave, and the state then.
SCENARIO(change_state_of) {
  OK(cuInit(0));
  const int pid = std::atoi(arguments.at(0).c_str());
  const unsigned timeout = arguments.size() > 2 ? static_cast<unsigned>(std::stoul(arguments[2])) : 0;
  const std::string& actions = arguments.at(1);
  for (size_t at = 0; at < actions.size();) {
    const size_t end = std::min(actions.find(',', at), actions.size());
    const std::string action = actions.substr(at, end - at);
    at = end + 1;
    std::printf("%s begins\n", action.c_str());
    std::fflush(stdout);
    const CUresult result = act(action, pid, timeout);
    CUprocessState state{};
    const CUresult asked = cuCheckpointProcessGetState(pid, &state);
    std::printf("%s: %s, %s\n", action.c_str(), name_of(result), asked == CUDA_SUCCESS ? text_of(state) : name_of(asked));
    std::fflush(stdout);
  }
}

// [file, pieces of 8 MiB, devices]: computes until the file is there and says every so often that it does; then all it has must be right.
SCENARIO(computes_until) {
  OK(cuInit(0));
  const size_t pieces = std::stoul(arguments.at(1));
  const unsigned count = kPiece / 4;
  struct Part {
    std::unique_ptr<Device> device;
    std::unique_ptr<Kernels> kernels;
    std::vector<CUdeviceptr> memory;
  };
  std::vector<Part> parts(arguments.size() > 2 ? std::stoul(arguments[2]) : 1);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].device = std::make_unique<Device>(static_cast<int>(i));
    parts[i].kernels = std::make_unique<Kernels>();
    parts[i].memory.resize(pieces);
    for (CUdeviceptr& memory : parts[i].memory) {
      OK(cuMemAlloc(&memory, kPiece));
      OK(parts[i].kernels->launch("fill", (count + 255) / 256, 256, nullptr, memory, 7u, count));
    }
    OK(cuCtxSynchronize());
  }
  unsigned rounds = 0;
  for (bool last = false; !last; ++rounds) {
    last = is_there(arguments.at(0));
    for (Part& part : parts) {
      OK(cuCtxSetCurrent(part.device->context));
      for (const CUdeviceptr memory : part.memory) OK(part.kernels->launch("add", (count + 255) / 256, 256, nullptr, memory, 3u, count));
      OK(cuCtxSynchronize());
    }
    std::printf("round %u\n", rounds);
    std::fflush(stdout);
  }
  for (Part& part : parts) {
    OK(cuCtxSetCurrent(part.device->context));
    for (const CUdeviceptr memory : part.memory) {
      const auto values = download<uint32_t>(memory, count);
      for (unsigned i = 0; i < count; ++i) EXPECT(values[i] == 7 + i + 3 * rounds);
      OK(cuMemFree(memory));
    }
  }
  std::printf("all right\n");
}

// [file]: its stream waits for a host function, which waits for the file.
SCENARIO(busy_until) {
  Device device;
  Kernels kernels;
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, 4096));
  static std::string file;
  file = arguments.at(0);
  OK(cuLaunchHostFunc(nullptr, [](void*) {
    while (!is_there(file)) ::usleep(1000);
  }, nullptr));
  OK(kernels.launch("fill", 1, 256, nullptr, memory, 5u, 256u));
  std::printf("working\n");
  std::fflush(stdout);
  OK(cuCtxSynchronize());
  EXPECT(download<uint32_t>(memory, 256)[200] == 205);
  std::printf("all right\n");
}

// [file]: a kernel computes until the file is there.
SCENARIO(long_kernel_until) {
  Device device;
  Kernels kernels;
  CUdeviceptr flag = 0;
  OK(cuMemAlloc(&flag, kPiece));
  OK(cuMemsetD8(flag, 0, kPiece));
  CUstream stream = nullptr, other = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(kernels.launch("burn_forever", 1, 1, stream, flag));
  OK(cuStreamQuery(other));
  std::printf("working\n");
  std::fflush(stdout);
  while (!is_there(arguments.at(0))) ::usleep(1000);
  OK(cuMemsetD8Async(flag, 1, kPiece, other));
  OK(cuStreamSynchronize(stream));
  std::printf("all right\n");
}

// It does it to itself, while another thread computes.
SCENARIO(checkpoints_itself) {
  Device device;
  Kernels kernels;
  constexpr unsigned kCount = kPiece / 4;
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, kPiece));
  OK(kernels.launch("fill", (kCount + 255) / 256, 256, nullptr, memory, 7u, kCount));
  OK(cuCtxSynchronize());
  const int pid = ::getpid();
  const auto state = [&] {
    CUprocessState now{};
    OK(cuCheckpointProcessGetState(pid, &now));
    return now;
  };
  EXPECT(state() == CU_PROCESS_STATE_RUNNING);
  int thread = 0;
  OK(cuCheckpointProcessGetRestoreThreadId(pid, &thread));
  EXPECT(is_there("/proc/self/task/" + std::to_string(thread)));
  OK(cuCheckpointProcessLock(pid, nullptr));
  EXPECT(state() == CU_PROCESS_STATE_LOCKED);
  std::atomic<bool> through{false};
  std::thread locked([&] {
    OK(cuCtxSetCurrent(device.context));
    OK(kernels.launch("add", (kCount + 255) / 256, 256, nullptr, memory, 3u, kCount));
    OK(cuCtxSynchronize());
    through = true;
  });
  OK(cuCheckpointProcessCheckpoint(pid, nullptr));
  EXPECT(state() == CU_PROCESS_STATE_CHECKPOINTED);
  ::usleep(100'000);
  EXPECT(!through);
  OK(cuCheckpointProcessRestore(pid, nullptr));
  EXPECT(state() == CU_PROCESS_STATE_LOCKED);
  OK(cuCheckpointProcessUnlock(pid, nullptr));
  EXPECT(state() == CU_PROCESS_STATE_RUNNING);
  locked.join();
  EXPECT(through);
  const auto values = download<uint32_t>(memory, kCount);
  for (unsigned i = 0; i < kCount; ++i) EXPECT(values[i] == 10 + i);
}

// ["memory", "array" or "shared", file]: has what cannot leave the GPU, until the file is there.
SCENARIO(has_what_stays) {
  Device device;
  if (arguments.at(0) == "array") {
    CUarray array = nullptr;
    CUDA_ARRAY_DESCRIPTOR shape{64, 64, CU_AD_FORMAT_FLOAT, 1};
    OK(cuArrayCreate(&array, &shape));
  } else if (arguments[0] == "shared") {
    CUdeviceptr memory = 0;
    CUipcMemHandle name{};
    OK(cuMemAlloc(&memory, kPiece));
    OK(cuIpcGetMemHandle(&name, memory));
  } else {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    OK(cuMemCreate(&handle, kPiece, &properties, 0));
  }
  OK(cuCtxSynchronize());
  std::printf("working\n");
  std::fflush(stdout);
  while (!is_there(arguments.at(1))) ::usleep(1000);
  OK(cuCtxSynchronize());
  std::printf("all right\n");
}
#endif
