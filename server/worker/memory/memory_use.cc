#include "server/worker/memory/memory_use.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "common/log/log.h"
#include "common/text/gpu_uuid.h"
#include "protocol/nvml/nvml.h"
#include "server/worker/device/device_library.h"

namespace gpupool::worker {
namespace {

constexpr int kMostAttempts = 4;  // further processes may start while the list is read

class Nvml {
 public:
  // Returns true if NVML knows at least one of the devices.
  bool open(const std::string& path, const std::vector<control::Device>& devices) {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    const auto find = [library](const char* name) { return ::dlsym(library, name); };
    const auto init = reinterpret_cast<decltype(&nvmlInit_v2)>(find("nvmlInit_v2"));
    const auto by_uuid =
        reinterpret_cast<decltype(&nvmlDeviceGetHandleByUUID)>(find("nvmlDeviceGetHandleByUUID"));
    memory_info_ = reinterpret_cast<decltype(memory_info_)>(find("nvmlDeviceGetMemoryInfo"));
    processes_ = reinterpret_cast<decltype(processes_)>(find("nvmlDeviceGetComputeRunningProcesses_v3"));
    if (!processes_)
      processes_ = reinterpret_cast<decltype(processes_)>(find("nvmlDeviceGetComputeRunningProcesses_v2"));
    if (!init || !by_uuid || init() != NVML_SUCCESS) return false;
    for (const control::Device& device : devices) {
      nvmlDevice_t handle = nullptr;
      std::string uuid = gpu_uuid_text(device.uuid());
      bool known = by_uuid(uuid.c_str(), &handle) == NVML_SUCCESS;
      // An instance of a divided GPU (MIG).
      if (!known)
        known =
            by_uuid(uuid.replace(0, std::string_view("GPU").size(), "MIG").c_str(), &handle) == NVML_SUCCESS;
      handles_.push_back(known ? handle : nullptr);
    }
    return std::any_of(handles_.begin(), handles_.end(),
                       [](nvmlDevice_t handle) { return handle != nullptr; });
  }

  MemoryUse use_of(int device) const {
    if (device < 0 || static_cast<size_t>(device) >= handles_.size()) return {};
    const nvmlDevice_t handle = handles_[static_cast<size_t>(device)];
    if (!handle) return {};
    MemoryUse use{.process = of_process(handle)};
    nvmlMemory_t memory{};
    if (memory_info_ && memory_info_(handle, &memory) == NVML_SUCCESS) use.device = memory.used;
    return use;
  }

 private:
  // Also nullopt if the driver knows the process by another number, as in a container.
  std::optional<uint64_t> of_process(nvmlDevice_t handle) const {
    std::vector<nvmlProcessInfo_t> all(64);
    for (int attempt = 0; processes_ && attempt < kMostAttempts; ++attempt) {
      auto count = static_cast<unsigned>(all.size());
      const nvmlReturn_t result = processes_(handle, &count, all.data());
      if (result == NVML_ERROR_INSUFFICIENT_SIZE) {
        all.resize(std::max<size_t>(count, all.size()) * 2);
        continue;
      }
      if (result != NVML_SUCCESS) break;
      const auto end = all.begin() + std::min<size_t>(count, all.size());
      const auto own = std::find_if(all.begin(), end, [](const nvmlProcessInfo_t& one) {
        return one.pid == static_cast<unsigned>(::getpid());
      });
      if (own == end || own->usedGpuMemory == static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE))
        break;
      return own->usedGpuMemory;
    }
    return std::nullopt;
  }

  std::vector<nvmlDevice_t> handles_;  // indexed by the device library's numbers; null: unknown to NVML
  decltype(&nvmlDeviceGetMemoryInfo) memory_info_ = nullptr;
  decltype(&nvmlDeviceGetComputeRunningProcesses_v2) processes_ = nullptr;  // _v3 has the same parameters
};

}  // namespace

std::function<MemoryUse(int device)> open_memory_use(const DeviceLibrary& library,
                                                     const std::vector<control::Device>& devices) {
  if (const auto tell =
          reinterpret_cast<int (*)(int, unsigned long long*)>(library.symbol("softgpu_process_memory"))) {
    return [tell](int device) {
      unsigned long long bytes = 0;
      return tell(device, &bytes) == CUDA_SUCCESS ? MemoryUse{.process = bytes} : MemoryUse{};
    };
  }
  // Takes NVML from the driver's folder: the libnvidia-ml.so.1 that the dynamic linker finds first may be
  // gpupool's own, for clients.
  Dl_info driver{};
  if (::dladdr(library.symbol("cuInit"), &driver) == 0 || !driver.dli_fname) return nullptr;
  const auto nvml = std::make_shared<Nvml>();
  if (nvml->open(std::filesystem::path(driver.dli_fname).parent_path() / "libnvidia-ml.so.1", devices)) {
    return [nvml](int device) { return nvml->use_of(device); };
  }
  log::debug("no_nvml",
             {{"effect",
               "a session's first context on a GPU is charged with all memory in use there, at most 1 GiB"}});
  return nullptr;
}

}  // namespace gpupool::worker
