// Programs that are locked and checkpointed while they compute, and one that does so to other processes (like
// NVIDIA's cuda-checkpoint).
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include "tests/e2e/apps/scenario.h"

#if CUDA_VERSION >= 12080
using namespace app;

namespace {

constexpr size_t kPiece = size_t{8} << 20;

bool is_there(const std::string& file) {
  return ::access(file.c_str(), F_OK) == 0;
}
// True if this thread of the program sleeps.
bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string stat(std::istreambuf_iterator<char>(file), {});
  const size_t state = stat.rfind(')') + 2;  // after the name, which may contain any character
  return state < stat.size() && stat[state] == 'S';
}
// Waits at most four minutes, since the test that should create the file may have ended.
void await_file(const std::string& file) {
  for (int i = 0; i < 240'000 && !is_there(file); ++i) ::usleep(1000);
  EXPECT(is_there(file));
}

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

// [pid, actions separated by commas, timeout in ms]: prints each action's result and the state after it.
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
    std::printf("%s: %s, %s\n", action.c_str(), name_of(result),
                asked == CUDA_SUCCESS ? text_of(state) : name_of(asked));
    std::fflush(stdout);
  }
}

// [file, pieces of 8 MiB, devices]: computes until the file exists, printing each round, and then checks all
// memory.
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
      for (const CUdeviceptr memory : part.memory)
        OK(part.kernels->launch("add", (count + 255) / 256, 256, nullptr, memory, 3u, count));
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

// [file]: its stream waits for a host function, which waits until the file exists.
SCENARIO(busy_until) {
  Device device;
  Kernels kernels;
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, 4096));
  static std::string file;
  file = arguments.at(0);
  OK(cuLaunchHostFunc(
      nullptr, [](void*) { await_file(file); }, nullptr));
  OK(kernels.launch("fill", 1, 256, nullptr, memory, 5u, 256u));
  std::printf("working\n");
  std::fflush(stdout);
  OK(cuCtxSynchronize());
  EXPECT(download<uint32_t>(memory, 256)[200] == 205);
  std::printf("all right\n");
}

// [file]: a kernel runs until the file exists.
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
  await_file(arguments.at(0));
  OK(cuMemsetD8Async(flag, 1, kPiece, other));
  OK(cuStreamSynchronize(stream));
  std::printf("all right\n");
}

// The process checkpoints itself while another thread computes.
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
  std::atomic<pid_t> waiting{0};
  std::thread locked([&] {
    waiting = ::gettid();
    OK(cuCtxSetCurrent(device.context));
    OK(kernels.launch("add", (kCount + 255) / 256, 256, nullptr, memory, 3u, kCount));
    OK(cuCtxSynchronize());
    through = true;
  });
  OK(cuCheckpointProcessCheckpoint(pid, nullptr));
  EXPECT(state() == CU_PROCESS_STATE_CHECKPOINTED);
  while (waiting == 0 || !is_asleep(waiting)) ::usleep(1000);
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

namespace {

template <class T>
void write_to(const std::string& path, const T& value) {
  std::ofstream(path + ".new").write(reinterpret_cast<const char*>(&value), sizeof value);
  EXPECT(std::rename((path + ".new").c_str(), path.c_str()) == 0);
}

CUmemAllocationProp on_device(CUmemAllocationHandleType types) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.requestedHandleTypes = types;
  return properties;
}

void map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle memory,
         CUmemAccess_flags flags) {
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
  OK(cuMemMap(address, size, offset, memory, 0));
  OK(cuMemSetAccess(address, size, &access, 1));
}

}  // namespace

// [file]: computes on memory mapped with cuMemMap and on an array until the file exists. Also exports memory
// through the IPC handle FILE.name, which no other program opens.
SCENARIO(computes_on_all_kinds_until) {
  Device device;
  Kernels kernels;
  constexpr unsigned kCount = kPiece / 4, kBlocks = kCount / 256, kWidth = 256, kTexels = kWidth * 64;
  // `memory` is mapped as a whole, and its second half again read-only. `aside` is unmapped during the
  // rounds.
  CUmemGenericAllocationHandle memory = 0, aside = 0;
  const CUmemAllocationProp shareable = on_device(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                            plain = on_device(CU_MEM_HANDLE_TYPE_NONE);
  OK(cuMemCreate(&memory, 2 * kPiece, &shareable, 0));
  OK(cuMemCreate(&aside, kPiece, &plain, 0));
  CUdeviceptr range = 0;
  OK(cuMemAddressReserve(&range, 4 * kPiece, 0, 0, 0));
  map(range, 2 * kPiece, 0, memory, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  map(range + 2 * kPiece, kPiece, kPiece, memory, CU_MEM_ACCESS_FLAGS_PROT_READ);
  map(range + 3 * kPiece, kPiece, 0, aside, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(kernels.launch("fill", 2 * kBlocks, 256, nullptr, range, 7u, 2 * kCount));
  OK(kernels.launch("fill", kBlocks, 256, nullptr, range + 3 * kPiece, 9u, kCount));
  OK(cuCtxSynchronize());
  OK(cuMemUnmap(range + 3 * kPiece, kPiece));
  int descriptor = -1;
  OK(cuMemExportToShareableHandle(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUdeviceptr offered = 0;
  CUipcMemHandle name{};
  OK(cuMemAlloc(&offered, kPiece));
  OK(kernels.launch("fill", kBlocks, 256, nullptr, offered, 11u, kCount));
  OK(cuIpcGetMemHandle(&name, offered));

  CUarray array = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR shape{kWidth, kTexels / kWidth,         0, CU_AD_FORMAT_UNSIGNED_INT32,
                                      1,      CUDA_ARRAY3D_SURFACE_LDST};
  OK(cuArray3DCreate(&array, &shape));
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  CUDA_TEXTURE_DESC reading{};
  reading.flags = CU_TRSF_READ_AS_INTEGER;
  CUsurfObject surface = 0;
  CUtexObject texture = 0;
  OK(cuSurfObjectCreate(&surface, &resource));
  OK(cuTexObjectCreate(&texture, &resource, &reading, nullptr));
  OK(kernels.launch("add_to_surface", kTexels / 256, 256, nullptr, surface, 5u, kWidth, kTexels));
  OK(cuCtxSynchronize());
  write_to(arguments.at(0) + ".name", name);

  unsigned rounds = 0;
  for (bool last = false; !last; ++rounds) {
    last = is_there(arguments.at(0));
    OK(kernels.launch("add", 2 * kBlocks, 256, nullptr, range, 3u, 2 * kCount));
    OK(kernels.launch("add_to_surface", kTexels / 256, 256, nullptr, surface, 2u, kWidth, kTexels));
    OK(cuCtxSynchronize());
    std::printf("round %u\n", rounds);
    std::fflush(stdout);
  }
  const auto once = download<uint32_t>(range, 2 * kCount),
             again = download<uint32_t>(range + 2 * kPiece, kCount);
  for (unsigned i = 0; i < 2 * kCount; ++i) EXPECT(once[i] == 7 + i + 3 * rounds);
  EXPECT(std::equal(again.begin(), again.end(), once.begin() + kCount));
  const CUmemLocation place{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  unsigned long long flags = 0;
  OK(cuMemGetAccess(&flags, &place, range));
  EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(cuMemGetAccess(&flags, &place, range + 2 * kPiece));
  EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
  map(range + 3 * kPiece, kPiece, 0, aside, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT(download<uint32_t>(range + 3 * kPiece, kCount)[kCount - 1] == 9 + kCount - 1);
  OK(kernels.launch("read_texture", kTexels / 256, 256, nullptr, texture, range, kWidth, kTexels));
  const auto texels = download<uint32_t>(range, kTexels);
  for (const uint32_t texel : texels) EXPECT(texel == 5 + 2 * rounds);
  std::vector<uint32_t> row(kWidth);
  OK(cuMemcpyAtoH(row.data(), array, 0, kWidth * 4));
  EXPECT(row[kWidth - 1] == 5 + 2 * rounds);
  OK(cuTexObjectDestroy(texture));
  OK(cuSurfObjectDestroy(surface));
  OK(cuArrayDestroy(array));
  OK(cuMemUnmap(range, 4 * kPiece));
  OK(cuMemRelease(memory));
  OK(cuMemRelease(aside));
  OK(cuMemFree(offered));
  std::printf("all right\n");
}

// [file with an IPC handle, file]: opens the memory that another program exported, and keeps it until the
// second file exists.
SCENARIO(takes_what_is_offered) {
  Device device;
  CUipcMemHandle name{};
  std::ifstream(arguments.at(0)).read(reinterpret_cast<char*>(&name), sizeof name);
  CUdeviceptr memory = 0;
  OK(cuIpcOpenMemHandle(&memory, name, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT(download<uint32_t>(memory, kPiece / 4)[1000] == 1011);
  std::printf("working\n");
  std::fflush(stdout);
  if (arguments.size() > 1) await_file(arguments[1]);
  OK(cuIpcCloseMemHandle(memory));
  std::printf("all right\n");
}

// [file]: keeps a graph with a copy from an array until the file exists, then launches it.
SCENARIO(has_graph_of_array_until) {
  Device device;
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR shape{64, 64, CU_AD_FORMAT_FLOAT, 1};
  OK(cuArrayCreate(&array, &shape));
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  OK(cuMemAlloc(&copy.dstDevice, 64 * 64 * 4));
  copy.dstPitch = copy.WidthInBytes = 64 * 4;
  copy.dstHeight = copy.Height = 64;
  copy.Depth = 1;
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, device.context));
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuCtxSynchronize());
  std::printf("working\n");
  std::fflush(stdout);
  await_file(arguments.at(0));
  OK(cuGraphLaunch(executable, nullptr));
  OK(cuCtxSynchronize());
  std::printf("all right\n");
}
#endif
