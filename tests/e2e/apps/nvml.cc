// Programs that use NVML together with CUDA, as frameworks and monitoring tools do: both must agree.
#include "protocol/nvml/nvml.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

void* library() {
  static void* const only = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!only) fail(__FILE__, __LINE__, dlerror());
  return only;
}

template <class Function>
Function symbol(const char* name) {
  void* const found = dlsym(library(), name);
  if (!found) fail(__FILE__, __LINE__, std::string("no ") + name);
  return reinterpret_cast<Function>(found);
}
#define NVML(name) symbol<decltype(&::name)>(#name)

void answers(nvmlReturn_t result, nvmlReturn_t expected, int line, const char* call) {
  if (result != expected) fail(__FILE__, line, std::string(call) + " gives " + std::to_string(result));
}
#define GOOD(name, ...) answers(NVML(name)(__VA_ARGS__), NVML_SUCCESS, __LINE__, #name)
#define ANSWERS(expected, name, ...) answers(NVML(name)(__VA_ARGS__), expected, __LINE__, #name)

nvmlDevice_t device_at(unsigned index) {
  nvmlDevice_t device = nullptr;
  GOOD(nvmlDeviceGetHandleByIndex_v2, index, &device);
  return device;
}

nvmlMemory_v2_t memory_of(nvmlDevice_t device) {
  nvmlMemory_v2_t memory{};
  memory.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2);
  GOOD(nvmlDeviceGetMemoryInfo_v2, device, &memory);
  EXPECT(memory.total == memory.reserved + memory.free + memory.used);
  nvmlMemory_t old{};
  GOOD(nvmlDeviceGetMemoryInfo, device, &old);
  EXPECT(old.total == memory.total && old.total == old.free + old.used);
  return memory;
}

// Returns the GPU memory that NVML reports for this process, or -1 if NVML does not list the process.
long long own_memory(nvmlDevice_t device) {
  nvmlProcessInfo_t infos[64];
  unsigned count = std::size(infos);
  GOOD(nvmlDeviceGetComputeRunningProcesses_v3, device, &count, infos);
  for (unsigned i = 0; i < count; ++i) {
    if (infos[i].pid == static_cast<unsigned>(getpid()))
      return static_cast<long long>(infos[i].usedGpuMemory);
  }
  return -1;
}

int attribute(CUdevice_attribute id, CUdevice device) {
  int value = 0;
  OK(cuDeviceGetAttribute(&value, id, device));
  return value;
}

void same_identity(CUdevice ordinal, nvmlDevice_t device) {
  char cuda_text[128] = "", text[128] = "";
  OK(cuDeviceGetName(cuda_text, sizeof cuda_text, ordinal));
  GOOD(nvmlDeviceGetName, device, text, sizeof text);
  EXPECT(std::strcmp(cuda_text, text) == 0);
  CUuuid uuid{};
  OK(cuDeviceGetUuid(&uuid, ordinal));
  nvmlUUID_t by_bytes{};
  by_bytes.version = NVML_STRUCT_VERSION(nvmlUUID_t, 1);
  by_bytes.type = 2;
  std::memcpy(by_bytes.value.bytes, uuid.bytes, sizeof uuid.bytes);
  nvmlDevice_t found = nullptr;
  GOOD(nvmlDeviceGetHandleByUUIDV, &by_bytes, &found);
  EXPECT(found == device);
  GOOD(nvmlDeviceGetUUID, device, text, sizeof text);
  GOOD(nvmlDeviceGetHandleByUUID, text, &found);
  EXPECT(found == device);
  ANSWERS(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetUUID, device, text, 40u);
  OK(cuDeviceGetPCIBusId(cuda_text, sizeof cuda_text, ordinal));
  GOOD(nvmlDeviceGetHandleByPciBusId_v2, cuda_text, &found);
  EXPECT(found == device);
  nvmlPciInfo_t pci{};
  GOOD(nvmlDeviceGetPciInfo_v3, device, &pci);
  EXPECT(strcasecmp(pci.busIdLegacy, cuda_text) == 0);
  GOOD(nvmlDeviceGetHandleByPciBusId_v2, pci.busId, &found);
  EXPECT(found == device);
  EXPECT(static_cast<int>(pci.domain) == attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, ordinal));
  EXPECT(static_cast<int>(pci.bus) == attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, ordinal));
  EXPECT(static_cast<int>(pci.device) == attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, ordinal));
  int major = 0, minor = 0;
  GOOD(nvmlDeviceGetCudaComputeCapability, device, &major, &minor);
  EXPECT(major == attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ordinal));
  EXPECT(minor == attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, ordinal));
  unsigned cores = 0;
  GOOD(nvmlDeviceGetNumGpuCores, device, &cores);
  EXPECT(cores != 0 &&
         cores % static_cast<unsigned>(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal)) == 0);
}

void same_memory(CUdevice ordinal, nvmlDevice_t device) {
  constexpr long long kBytes = 32 << 20;
  size_t total = 0, free = 0;
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, ordinal));
  OK(cuCtxSetCurrent(context));
  OK(cuDeviceTotalMem(&total, ordinal));
  EXPECT(memory_of(device).total == total);
  const auto settled = [&] {  // NVML's answers may lag behind
    OK(cuMemGetInfo(&free, &total));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (memory_of(device).free != free && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
  };
  settled();
  const auto before = memory_of(device);
  const long long own_before = std::max(own_memory(device), 0ll);
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, kBytes));
  settled();
  const auto after = memory_of(device);
  EXPECT(static_cast<long long>(after.used - before.used) == kBytes);
  EXPECT(own_memory(device) - own_before == kBytes);
  OK(cuMemGetInfo(&free, &total));
  EXPECT(after.total == total && after.free == free);
  OK(cuMemFree(memory));
  settled();
  EXPECT(memory_of(device).used == before.used);
  OK(cuDevicePrimaryCtxRelease(ordinal));
}

}  // namespace

SCENARIO(nvml_agrees_with_cuda) {
  if (!arguments.empty() && arguments[0] == "cuda_first") OK(cuInit(0));
  ANSWERS(NVML_ERROR_UNINITIALIZED, nvmlShutdown);
  GOOD(nvmlInit_v2);
  OK(cuInit(0));
  unsigned count = 0;
  int cuda_count = 0, version = 0, cuda_version = 0;
  GOOD(nvmlDeviceGetCount_v2, &count);
  OK(cuDeviceGetCount(&cuda_count));
  EXPECT(static_cast<int>(count) == cuda_count);
  OK(cuDriverGetVersion(&cuda_version));
  GOOD(nvmlSystemGetCudaDriverVersion_v2, &version);
  EXPECT(version == cuda_version);
  for (unsigned i = 0; i < count; ++i) {
    unsigned index = 99;
    GOOD(nvmlDeviceGetIndex, device_at(i), &index);
    EXPECT(index == i);
    same_identity(static_cast<int>(i), device_at(i));
    same_memory(static_cast<int>(i), device_at(i));
  }
  nvmlDevice_t none = nullptr;
  ANSWERS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2, count, &none);
  ANSWERS(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleByUUID, "GPU-00000000-0000-0000-0000-000000000000", &none);
  ANSWERS(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleByPciBusId_v2, "ffff:ff:1f.0", &none);
  unsigned degrees = 0;
  ANSWERS(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetTemperature, device_at(0), 0u, &degrees);
  GOOD(nvmlShutdown);
  ANSWERS(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2, &count);
  std::printf("%u agree\n", count);
}

// [duration in ms]: samples the utilization of GPU 0 and prints its range.
SCENARIO(nvml_utilization) {
  GOOD(nvmlInit_v2);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(std::stoi(arguments.at(0)));
  unsigned highest = 0, lowest = 100;
  do {
    nvmlUtilization_t utilization{};
    GOOD(nvmlDeviceGetUtilizationRates, device_at(0), &utilization);
    EXPECT(utilization.gpu <= 100);
    highest = std::max(highest, utilization.gpu);
    lowest = std::min(lowest, utilization.gpu);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (std::chrono::steady_clock::now() < end);
  std::printf("from %u to %u percent\n", lowest, highest);
}

// Polls until the GPU is lost and then available again.
SCENARIO(nvml_loses_its_server) {
  GOOD(nvmlInit_v2);
  std::printf("working\n");
  std::fflush(stdout);
  nvmlReturn_t last = NVML_SUCCESS;
  for (int i = 0; i < 6000; ++i) {
    nvmlMemory_t memory{};
    const auto begin = std::chrono::steady_clock::now();
    const nvmlReturn_t now = NVML(nvmlDeviceGetMemoryInfo)(device_at(0), &memory);
    EXPECT(std::chrono::steady_clock::now() - begin < std::chrono::seconds(12));
    EXPECT(now == NVML_SUCCESS || now == NVML_ERROR_GPU_IS_LOST);
    if (now != last) std::printf(now == NVML_SUCCESS ? "back\n" : "lost\n");
    std::fflush(stdout);
    if (now == NVML_SUCCESS && last != NVML_SUCCESS) return;
    last = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  fail(__FILE__, __LINE__, "it neither went nor came back");
}

SCENARIO(nvml_after_fork) {
  GOOD(nvmlInit_v2);
  const nvmlDevice_t device = device_at(0);
  const auto before = memory_of(device);
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      EXPECT(memory_of(device).total == before.total);
      EXPECT(memory_of(device).total == before.total);
      GOOD(nvmlShutdown);
      std::_Exit(0);
    }
    EXPECT(memory_of(device).total == before.total);
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
  }
  std::printf("forked\n");
}

// Several threads, each calling init and shutdown repeatedly.
SCENARIO(nvml_threads) {
  GOOD(nvmlInit_v2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < 20; ++round) {
        GOOD(nvmlInit_v2);
        (void)memory_of(device_at(0));
        GOOD(nvmlShutdown);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  GOOD(nvmlShutdown);
  std::printf("joined\n");
}

namespace {

constexpr const char* kFunctions[] = {
#define NVML_FUNCTION(name) #name,
#define NVML_NOT_SUPPORTED(name) #name,
#define NVML_CHANGES(name) #name,
#include "protocol/nvml/functions.def"
};

using Words = uint64_t[8];

void call_with(const char* name, const Words& w) {
  using Any = int (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
  (void)reinterpret_cast<Any>(dlsym(library(), name))(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]);
}

}  // namespace

// Calls each function with zeros, with pointers to blocks of zeros and of ones, and with a valid device or an
// invalid one as the first argument.
SCENARIO(nvml_any_call) {
  constexpr size_t kBlock = 65536;
  unsigned crashed = 0;
  for (const char* const name : kFunctions) {
    EXPECT(dlsym(library(), name) != nullptr);
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      auto* const scratch = static_cast<unsigned char*>(
          mmap(nullptr, 8 * kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      EXPECT(scratch != MAP_FAILED);
      dprintf(STDERR_FILENO, "%s\n", name);
      for (const bool initialised : {false, true}) {
        if (initialised) GOOD(nvmlInit_v2);
        for (int kind = 0; kind < 5; ++kind) {
          Words words = {};
          std::memset(scratch, kind == 2 ? 0xff : 0, 8 * kBlock);
          for (size_t i = 0; i < std::size(words) && kind > 0; ++i)
            words[i] = reinterpret_cast<uint64_t>(scratch) + i * kBlock;
          if (kind == 2)
            for (size_t i = 1; i <= 8; ++i) scratch[i * kBlock - 1] = 0;  // terminates strings
          if (std::strcmp(name, "nvmlDeviceGetFieldValues") == 0 && kind > 0)
            words[1] = 4;  // number of values
          if (kind == 3) words[0] = initialised ? reinterpret_cast<uint64_t>(device_at(0)) : 0x67700010;
          if (kind == 4) words[0] = 0xdeadbeefdeadbeef;
          const std::string text = name;
          if (kind >= 3 && (text.find("GetHandleBy") != text.npos || text.starts_with("nvmlSystem") ||
                            text.starts_with("nvmlUnit") || text.starts_with("nvmlGet") ||
                            text == "nvmlDeviceGetCount" || text == "nvmlDeviceGetCount_v2")) {
            continue;  // the first argument is a pointer
          }
          if (text == "nvmlShutdown" && initialised) GOOD(nvmlInit_v2);
          call_with(name, words);
        }
      }
      std::_Exit(0);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      ++crashed;
      std::printf("%s crashed\n", name);
    }
  }
  std::printf("%zu functions, %u crashed\n", std::size(kFunctions), crashed);
}
