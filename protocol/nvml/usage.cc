// The use of the GPUs by this client's tenant: memory, processes, time. Asked from the servers.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "protocol/nvml/library.h"

using namespace gpupool;
using namespace gpupool::nvml;

namespace {

constexpr unsigned kNone = 0xffffffff;  // no MIG instance
constexpr unsigned kCompute = 0, kEveryMode = 3;

template <class Answer>
nvmlReturn_t with_state(nvmlDevice_t handle, Answer answer) {
  return Library::get().with_device(handle, [&](const Device& device) {
    const monitor::State* const state = device.source->look();
    return state ? answer(device, *state) : device.source->unavailable();
  });
}

// Returns the processes of this host that use the GPU, with their GPU memory. A process may have several
// sessions.
std::map<unsigned, uint64_t> processes_on(const Device& device, const monitor::State& state) {
  std::map<unsigned, uint64_t> found;
  for (const auto& session : state.sessions) {
    for (const auto& use : session.uses) {
      if (use.gpu == device.place && session.pid > 0 && session.pid <= INT32_MAX)
        found[static_cast<unsigned>(session.pid)] += use.memory_bytes;
    }
  }
  return found;
}

void fill(nvmlProcessInfo_v1_t& info, unsigned pid, uint64_t bytes) {
  info = {.pid = pid, .usedGpuMemory = bytes};
}
void fill(nvmlProcessInfo_t& info, unsigned pid, uint64_t bytes) {
  info = {.pid = pid, .usedGpuMemory = bytes, .gpuInstanceId = kNone, .computeInstanceId = kNone};
}
void fill(nvmlProcessDetail_t& info, unsigned pid, uint64_t bytes) {
  info = {.pid = pid,
          .usedGpuMemory = bytes,
          .gpuInstanceId = kNone,
          .computeInstanceId = kNone,
          .usedGpuCcProtectedMemory = 0};
}

// As NVML does: if there is too little room, returns only the count.
template <class Entry, class All, class Fill>
nvmlReturn_t give_all(const All& all, unsigned* count, Entry* entries, Fill fill_one) {
  const unsigned room = *count;
  *count = static_cast<unsigned>(all.size());
  if (room < all.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (!entries && !all.empty()) return NVML_ERROR_INVALID_ARGUMENT;
  for (const auto& one : all) fill_one(*entries++, one);
  return NVML_SUCCESS;
}

template <class Info>
nvmlReturn_t compute_processes(nvmlDevice_t handle, unsigned* count, Info* infos) {
  return with_state(handle, [&](const Device& device, const monitor::State& state) {
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    return give_all(processes_on(device, state), count, infos,
                    [](Info& info, const auto& process) { fill(info, process.first, process.second); });
  });
}

// The pool has no graphics processes and does not use MPS.
nvmlReturn_t no_processes(nvmlDevice_t handle, unsigned* count) {
  return Library::get().with_device(handle, [&](const Device&) { return give(std::optional(0), count); });
}

// Percentage of the window's time.
unsigned percent(uint64_t before, uint64_t now, const Source::Window& window) {
  const int64_t time = window.now->taken_ns - window.before->taken_ns;
  const uint64_t used = now > before ? now - before : 0;
  return time <= 0 ? 0
                   : static_cast<unsigned>(std::min<uint64_t>(
                         100, (100 * used + static_cast<uint64_t>(time) / 2) / static_cast<uint64_t>(time)));
}

// Calls `answer` once a window exists. Right after nvmlInit that takes 1/6 s, during which other threads'
// calls continue.
template <class Answer>
nvmlReturn_t with_window(nvmlDevice_t handle, Answer answer) {
  constexpr int kMostTries = 10;
  for (int tries = 0; tries < kMostTries; ++tries) {
    std::chrono::milliseconds missing{};
    const nvmlReturn_t result = Library::get().with_device(handle, [&](const Device& device) {
      const Source::Window window = device.source->window();
      if (!window.now) return device.source->unavailable();
      missing = window.missing;
      return window.before ? answer(device, window) : NVML_SUCCESS;
    });
    if (missing.count() == 0) return result;
    std::this_thread::sleep_for(missing);
  }
  return NVML_ERROR_UNKNOWN;
}

uint64_t time_of(const monitor::State& state, uint64_t session, size_t gpu) {
  for (const auto& one : state.sessions) {
    if (one.number != session) continue;
    for (const auto& use : one.uses) {
      if (use.gpu == gpu) return use.gpu_nanoseconds;
    }
  }
  return 0;
}

// Returns the processes that used the GPU in the window, with their share in percent.
std::map<unsigned, unsigned> busy_processes(const Device& device, const Source::Window& window) {
  std::map<unsigned, unsigned> busy;
  for (const auto& session : window.now->sessions) {
    if (session.pid <= 0 || session.pid > INT32_MAX) continue;
    for (const auto& use : session.uses) {
      if (use.gpu != device.place) continue;
      const unsigned share =
          percent(time_of(*window.before, session.number, use.gpu), use.gpu_nanoseconds, window);
      unsigned& sum = busy[static_cast<unsigned>(session.pid)];
      sum = std::min(100u, sum + share);
    }
  }
  std::erase_if(busy, [](const auto& process) { return process.second == 0; });
  return busy;
}

uint64_t microseconds_since_1970() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return with_state(device, [&](const Device& known, const monitor::State& state) {
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    const monitor::Gpu& gpu = state.gpus[known.place];
    *memory = {.total = gpu.total_bytes, .free = gpu.free_bytes, .used = gpu.total_bytes - gpu.free_bytes};
    return NVML_SUCCESS;
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  return with_state(device, [&](const Device& known, const monitor::State& state) {
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    const unsigned version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2);
    if (memory->version != version) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const monitor::Gpu& gpu = state.gpus[known.place];
    *memory = {.version = version,
               .total = gpu.total_bytes,
               .reserved = gpu.total_bytes - gpu.free_bytes - gpu.used_bytes,
               .free = gpu.free_bytes,
               .used = gpu.used_bytes};
    return NVML_SUCCESS;
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                              nvmlProcessInfo_v1_t* infos) {
  return compute_processes(device, count, infos);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                                 nvmlProcessInfo_t* infos) {
  return compute_processes(device, count, infos);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                                 nvmlProcessInfo_t* infos) {
  return compute_processes(device, count, infos);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                               nvmlProcessInfo_v1_t*) {
  return no_processes(device, count);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                                  nvmlProcessInfo_t*) {
  return no_processes(device, count);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                                  nvmlProcessInfo_t*) {
  return no_processes(device, count);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                                 nvmlProcessInfo_v1_t*) {
  return no_processes(device, count);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                                    nvmlProcessInfo_t*) {
  return no_processes(device, count);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                                    nvmlProcessInfo_t*) {
  return no_processes(device, count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                               nvmlProcessDetailList_t* list) {
  return with_state(device, [&](const Device& known, const monitor::State& state) {
    if (!list) return NVML_ERROR_INVALID_ARGUMENT;
    if (list->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_t, 1))
      return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (list->mode > kEveryMode) return NVML_ERROR_INVALID_ARGUMENT;
    const bool any = list->mode == kCompute || list->mode == kEveryMode;
    const auto processes = any ? processes_on(known, state) : std::map<unsigned, uint64_t>();
    return give_all(
        processes, &list->numProcArrayEntries, list->procArray,
        [](nvmlProcessDetail_t& info, const auto& process) { fill(info, process.first, process.second); });
  });
}

// Memory utilization is not measured and reported as 0.
NVML_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  if (!utilization) return with_window(device, [](auto&, auto&) { return NVML_ERROR_INVALID_ARGUMENT; });
  return with_window(device, [&](const Device& known, const Source::Window& window) {
    *utilization = {.gpu = percent(window.before->gpus[known.place].gpu_nanoseconds,
                                   window.now->gpus[known.place].gpu_nanoseconds, window),
                    .memory = 0};
    return NVML_SUCCESS;
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                         nvmlProcessUtilizationSample_t* samples,
                                                         unsigned int* count, unsigned long long) {
  return with_window(device, [&](const Device& known, const Source::Window& window) {
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    const auto busy = busy_processes(known, window);
    if (busy.empty()) return NVML_ERROR_NOT_FOUND;
    return give_all(busy, count, samples, [&](nvmlProcessUtilizationSample_t& sample, const auto& process) {
      sample = {.pid = process.first,
                .timeStamp = microseconds_since_1970(),
                .smUtil = process.second,
                .memUtil = 0,
                .encUtil = 0,
                .decUtil = 0};
    });
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                               nvmlProcessesUtilizationInfo_t* info) {
  return with_window(device, [&](const Device& known, const Source::Window& window) {
    if (!info) return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_t, 1))
      return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const auto busy = busy_processes(known, window);
    if (busy.empty()) return NVML_ERROR_NOT_FOUND;
    return give_all(busy, &info->processSamplesCount, info->procUtilArray,
                    [&](nvmlProcessUtilizationInfo_t& sample, const auto& process) {
                      sample = {.timeStamp = microseconds_since_1970(),
                                .pid = process.first,
                                .smUtil = process.second,
                                .memUtil = 0,
                                .encUtil = 0,
                                .decUtil = 0,
                                .jpgUtil = 0,
                                .ofaUtil = 0};
                    });
  });
}
