#include "server/poold/sensors/sensors.h"

#include <dlfcn.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "common/blocked_signals.h"
#include "common/log/log.h"
#include "common/text/printable.h"
#include "protocol/nvml/nvml.h"

namespace gpupool::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kReadEvery{1};
constexpr unsigned kMostGpusRead = 64;
constexpr unsigned kGpuSensor = 0, kGraphicsClock = 0, kSmClock = 1, kMemoryClock = 2, kVideoClock = 3;
constexpr unsigned kCorrected = 0, kUncorrected = 1, kSinceLoad = 0;
constexpr unsigned kMemoryTemperatureField = 82;

// The functions of NVML that are used. A function that the library lacks returns NVML_ERROR_NOT_SUPPORTED.
class Nvml {
 public:
  // Returns null if it has been loaded and started, else the reason.
  const char* open(const std::string& library) {
    library_ = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) return ::dlerror();
    if (call<decltype(&nvmlInit_v2)>("nvmlInit_v2") != NVML_SUCCESS) return "nvmlInit_v2 has failed";
    return nullptr;
  }
  template <class Function, class... Arguments>
  nvmlReturn_t call(const char* name, Arguments... arguments) const {
    const auto found = reinterpret_cast<Function>(::dlsym(library_, name));
    return found ? found(arguments...) : NVML_ERROR_NOT_SUPPORTED;
  }
  // Calls a function that returns one value of a device.
  template <class Function, class Value, class... Arguments>
  std::optional<Value> read(const char* name, nvmlDevice_t device, Value value, Arguments... before) const {
    if (call<Function>(name, device, before..., &value) != NVML_SUCCESS) return std::nullopt;
    return value;
  }

 private:
  void* library_ = nullptr;  // never unloaded: its threads may run on
};

#define NVML_READ(function, value, ...) \
  nvml.read<decltype(&function)>(#function, device, value __VA_OPT__(, ) __VA_ARGS__)

void read_clocks(const Nvml& nvml, nvmlDevice_t device, control::Sensors& out) {
  const auto clock = [&](unsigned type) { return NVML_READ(nvmlDeviceGetClockInfo, 0u, type); };
  if (const auto mhz = clock(kGraphicsClock)) out.set_graphics_mhz(*mhz);
  if (const auto mhz = clock(kSmClock)) out.set_sm_mhz(*mhz);
  if (const auto mhz = clock(kMemoryClock)) out.set_memory_mhz(*mhz);
  if (const auto mhz = clock(kVideoClock)) out.set_video_mhz(*mhz);
  if (const auto state = NVML_READ(nvmlDeviceGetPerformanceState, 0u); state && *state <= 15)
    out.set_performance_state(*state);
}

void read_power(const Nvml& nvml, nvmlDevice_t device, control::Sensors& out) {
  if (const auto degrees = NVML_READ(nvmlDeviceGetTemperature, 0u, kGpuSensor)) out.set_temperature(*degrees);
  if (const auto milliwatts = NVML_READ(nvmlDeviceGetPowerUsage, 0u)) out.set_power_milliwatts(*milliwatts);
  if (const auto milliwatts = NVML_READ(nvmlDeviceGetEnforcedPowerLimit, 0u))
    out.set_power_limit_milliwatts(*milliwatts);
  if (const auto energy = NVML_READ(nvmlDeviceGetTotalEnergyConsumption, 0ull))
    out.set_energy_millijoules(*energy);
  if (const auto percent = NVML_READ(nvmlDeviceGetFanSpeed, 0u)) out.set_fan_percent(*percent);
  nvmlFieldValue_t field{};
  field.fieldId = kMemoryTemperatureField;
  if (nvml.call<decltype(&nvmlDeviceGetFieldValues)>("nvmlDeviceGetFieldValues", device, 1, &field) ==
          NVML_SUCCESS &&
      field.nvmlReturn == NVML_SUCCESS)
    out.set_memory_temperature(field.value.uiVal);
}

void read_errors(const Nvml& nvml, nvmlDevice_t device, control::Sensors& out) {
  const auto errors = [&](unsigned kind) {
    return NVML_READ(nvmlDeviceGetTotalEccErrors, 0ull, kind, kSinceLoad);
  };
  if (const auto count = errors(kCorrected)) out.set_ecc_corrected(*count);
  if (const auto count = errors(kUncorrected)) out.set_ecc_uncorrected(*count);
}

admin::GpuSensors read_gpu(const Nvml& nvml, nvmlDevice_t device) {
  admin::GpuSensors gpu;
  read_power(nvml, device, *gpu.mutable_sensors());
  read_clocks(nvml, device, *gpu.mutable_sensors());
  read_errors(nvml, device, *gpu.mutable_sensors());
  if (const auto rates = NVML_READ(nvmlDeviceGetUtilizationRates, nvmlUtilization_t{})) {
    gpu.set_gpu_percent(rates->gpu);
    gpu.set_memory_percent(rates->memory);
  }
  nvmlMemory_v2_t memory{};
  memory.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2);
  if (const auto info = NVML_READ(nvmlDeviceGetMemoryInfo_v2, memory)) {
    gpu.set_memory_used_bytes(info->used);
    gpu.set_memory_free_bytes(info->free);
    gpu.set_memory_reserved_bytes(info->reserved);
  }
  return gpu;
}
#undef NVML_READ

std::map<std::string, admin::GpuSensors> read_gpus(const Nvml& nvml) {
  std::map<std::string, admin::GpuSensors> gpus;
  char version[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE] = "";
  nvml.call<decltype(&nvmlSystemGetDriverVersion)>("nvmlSystemGetDriverVersion", version,
                                                   static_cast<unsigned>(sizeof version - 1));
  unsigned count = 0;
  nvml.call<decltype(&nvmlDeviceGetCount_v2)>("nvmlDeviceGetCount_v2", &count);
  for (unsigned index = 0; index < count && index < kMostGpusRead; ++index) {
    nvmlDevice_t device = nullptr;
    char uuid[NVML_DEVICE_UUID_BUFFER_SIZE] = "";
    if (nvml.call<decltype(&nvmlDeviceGetHandleByIndex_v2)>("nvmlDeviceGetHandleByIndex_v2", index,
                                                            &device) != NVML_SUCCESS ||
        nvml.call<decltype(&nvmlDeviceGetUUID)>("nvmlDeviceGetUUID", device, uuid,
                                                static_cast<unsigned>(sizeof uuid - 1)) != NVML_SUCCESS)
      continue;
    admin::GpuSensors& gpu = gpus[uuid] = read_gpu(nvml, device);
    gpu.set_driver_version(printable(version));
  }
  return gpus;
}

}  // namespace

struct Sensors::Shared {
  std::mutex mutex;
  std::condition_variable end;
  bool ended = false;
  std::map<std::string, admin::GpuSensors> gpus;
  Clock::time_point read_at{};

  // The thread.
  void read_again_and_again(const std::string& library) {
    Nvml nvml;
    if (const char* const why = nvml.open(library)) {
      log::warning("no_sensors", {{"library", library}, {"reason", printable(why)}});
      return;
    }
    std::unique_lock lock(mutex);
    while (!ended) {
      lock.unlock();
      auto read = read_gpus(nvml);
      lock.lock();
      gpus = std::move(read);
      read_at = Clock::now();
      end.wait_for(lock, kReadEvery, [this] { return ended; });
    }
  }
};

Sensors::Sensors(const std::string& library)
    : shared_(library.empty() ? nullptr : std::make_shared<Shared>()) {
  if (!shared_) return;
  const BlockedSignals blocked;
  try {
    std::thread([shared = shared_, library] { shared->read_again_and_again(library); }).detach();
  } catch (const std::system_error& failure) {
    log::warning("no_sensors", {{"reason", std::string("cannot start a thread: ") + failure.what()}});
  }
}

Sensors::~Sensors() {
  if (!shared_) return;
  const std::lock_guard lock(shared_->mutex);
  shared_->ended = true;
  shared_->end.notify_all();
}

std::optional<admin::GpuSensors> Sensors::of(const std::string& uuid) const {
  if (!shared_) return std::nullopt;
  const std::lock_guard lock(shared_->mutex);
  const auto found = shared_->gpus.find(uuid);
  if (found == shared_->gpus.end() || Clock::now() > shared_->read_at + kStale) return std::nullopt;
  return found->second;
}

std::string nvml_library(const std::string& option, const std::string& device) {
  if (option == "off") return "";
  if (option != "auto") return option;
  return device == "nvidia" ? "libnvidia-ml.so.1" : "";
}

}  // namespace gpupool::server
