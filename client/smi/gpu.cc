#include "client/smi/gpu.h"

#include <strings.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>

#include "common/text/printable.h"

namespace gpupool::smi {
namespace {

using Kind = Field::Kind;

const std::vector<std::pair<const char*, const char*>> kAlso = {
    {"gpu_name", "name"},
    {"gpu_uuid", "uuid"},
    {"gpu_bus_id", "pci.bus_id"},
    {"clocks.current.sm", "clocks.sm"},
    {"clocks.gr", "clocks.sm"},
    {"clocks.current.memory", "clocks.mem"},
    {"clocks.current.graphics", "clocks.sm"},
    {"power.limit", "enforced.power.limit"},
};

std::string decimals(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

std::string now() {
  char text[64];
  const std::time_t time = std::time(nullptr);
  std::tm local{};
  std::strftime(text, sizeof text, "%Y/%m/%d %H:%M:%S", ::localtime_r(&time, &local));
  return text;
}

std::string in_mib(unsigned long long bytes) {
  return std::to_string(bytes >> 20);
}

// Reads one GPU's values; values whose function fails are left out.
class Reader {
 public:
  Reader(const Api& api, nvmlDevice_t device, Gpu& gpu) : api_(api), device_(device), gpu_(gpu) {}

  void identity() {
    set("index", std::to_string(gpu_.index));
    char text[96] = "";
    if (ok(api_.nvmlDeviceGetName(device_, text, sizeof text))) set("name", text);
    if (ok(api_.nvmlDeviceGetUUID(device_, text, sizeof text))) set("uuid", text);
    nvmlPciInfo_t pci{};
    if (ok(api_.nvmlDeviceGetPciInfo_v3(device_, &pci))) set("pci.bus_id", pci.busId);
    int major = 0, minor = 0;
    if (ok(api_.nvmlDeviceGetCudaComputeCapability(device_, &major, &minor)))
      set("compute_cap", std::to_string(major) + "." + std::to_string(minor));
  }

  void modes() {
    constexpr const char* kModes[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
    unsigned value = 0, pending = 0;
    if (ok(api_.nvmlDeviceGetComputeMode(device_, &value)) && value < 4) set("compute_mode", kModes[value]);
    if (ok(api_.nvmlDeviceGetPersistenceMode(device_, &value)))
      set("persistence_mode", value ? "Enabled" : "Disabled");
    if (ok(api_.nvmlDeviceGetEccMode(device_, &value, &pending)))
      set("ecc.mode.current", value ? "Enabled" : "Disabled");
  }

  void use() {
    nvmlMemory_v2_t memory{};
    memory.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2);
    if (ok(api_.nvmlDeviceGetMemoryInfo_v2(device_, &memory))) {
      set("memory.total", in_mib(memory.total));
      set("memory.reserved", in_mib(memory.reserved));
      set("memory.used", in_mib(memory.used));
      set("memory.free", in_mib(memory.free));
    }
    nvmlUtilization_t utilization{};
    // The library cannot report utilization.memory as unknown (it returns 0), so it is left out.
    if (ok(api_.nvmlDeviceGetUtilizationRates(device_, &utilization)))
      set("utilization.gpu", std::to_string(utilization.gpu));
    processes();
  }

  void sensors() {
    unsigned value = 0;
    const auto read = [&](const char* name, auto function, auto... more) {
      if (ok(function(device_, more..., &value))) set(name, std::to_string(value));
    };
    read("temperature.gpu", api_.nvmlDeviceGetTemperature, 0u);
    read("fan.speed", api_.nvmlDeviceGetFanSpeed);
    read("clocks.sm", api_.nvmlDeviceGetClockInfo, 1u);
    read("clocks.mem", api_.nvmlDeviceGetClockInfo, 2u);
    read("clocks.max.sm", api_.nvmlDeviceGetMaxClockInfo, 1u);
    read("clocks.max.mem", api_.nvmlDeviceGetMaxClockInfo, 2u);
    if (ok(api_.nvmlDeviceGetPowerUsage(device_, &value))) set("power.draw", decimals(value / 1000.0));
    if (ok(api_.nvmlDeviceGetEnforcedPowerLimit(device_, &value)))
      set("enforced.power.limit", decimals(value / 1000.0));
    if (ok(api_.nvmlDeviceGetPerformanceState(device_, &value))) set("pstate", "P" + std::to_string(value));
  }

 private:
  bool ok(nvmlReturn_t result) {
    gpu_.lost |= result == NVML_ERROR_GPU_IS_LOST;
    return result == NVML_SUCCESS;
  }
  // Makes the value printable, because names come from servers.
  void set(const char* name, const std::string& value) { gpu_.values[name] = printable(value); }

  void processes() {
    std::vector<nvmlProcessInfo_t> infos(16);
    unsigned count = 0;
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    // More may start meanwhile.
    for (int tries = 0; tries < 4 && result == NVML_ERROR_INSUFFICIENT_SIZE; ++tries) {
      infos.resize(std::max<size_t>(infos.size(), 2 * count));
      count = static_cast<unsigned>(infos.size());
      result = api_.nvmlDeviceGetComputeRunningProcesses_v3(device_, &count, infos.data());
    }
    for (unsigned i = 0; ok(result) && i < count; ++i) {
      char name[256] = "";
      if (api_.nvmlSystemGetProcessName(infos[i].pid, name, sizeof name) != NVML_SUCCESS)
        std::snprintf(name, sizeof name, "-");
      gpu_.processes.push_back({infos[i].pid, printable(name), infos[i].usedGpuMemory >> 20});
    }
  }

  const Api& api_;
  const nvmlDevice_t device_;
  Gpu& gpu_;
};

bool is_wanted(const Gpu& gpu, const std::vector<std::string>& wanted) {
  return wanted.empty() || std::any_of(wanted.begin(), wanted.end(), [&](const std::string& word) {
           return word == gpu.get("index") || ::strcasecmp(word.c_str(), gpu.get("uuid").c_str()) == 0 ||
                  ::strcasecmp(word.c_str(), gpu.get("pci.bus_id").c_str()) == 0;
         });
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> all = {
      {"timestamp", "", Kind::text},
      {"index", "", Kind::number},
      {"count", "", Kind::number},
      {"name", "", Kind::text},
      {"uuid", "", Kind::text},
      {"pci.bus_id", "", Kind::text},
      {"driver_version", "", Kind::text},
      {"cuda_version", "", Kind::text},
      {"compute_cap", "", Kind::text},
      {"memory.total", "MiB", Kind::number},
      {"memory.reserved", "MiB", Kind::number},
      {"memory.used", "MiB", Kind::number},
      {"memory.free", "MiB", Kind::number},
      {"utilization.gpu", "%", Kind::number},
      {"utilization.memory", "%", Kind::number},
      {"compute_mode", "", Kind::text},
      {"persistence_mode", "", Kind::text},
      {"ecc.mode.current", "", Kind::text},
      {"temperature.gpu", "", Kind::number},
      {"power.draw", "W", Kind::real},
      {"enforced.power.limit", "W", Kind::real},
      {"fan.speed", "%", Kind::number},
      {"pstate", "", Kind::text},
      {"clocks.sm", "MHz", Kind::number},
      {"clocks.mem", "MHz", Kind::number},
      {"clocks.max.sm", "MHz", Kind::number},
      {"clocks.max.mem", "MHz", Kind::number},
  };
  return all;
}

const Field* find_field(const std::string& name) {
  std::string wanted = name;
  for (const auto& [also, field] : kAlso) {
    if (name == also) wanted = field;
  }
  const auto found = std::find_if(fields().begin(), fields().end(),
                                  [&](const Field& field) { return wanted == field.name; });
  return found == fields().end() ? nullptr : &*found;
}

const std::string& Gpu::get(const std::string& name) const {
  static const std::string unknown = "N/A";
  const auto found = values.find(name);
  return found == values.end() ? unknown : found->second;
}

std::vector<Gpu> read_gpus(const Api& api, const std::vector<std::string>& wanted, std::string& failure) {
  const auto fail = [&](nvmlReturn_t result) {
    return failure = api.nvmlErrorString(result), std::vector<Gpu>();
  };
  unsigned count = 0;
  if (const nvmlReturn_t result = api.nvmlDeviceGetCount_v2(&count); result != NVML_SUCCESS)
    return fail(result);
  char driver[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE] = "";
  int cuda = 0;
  (void)api.nvmlSystemGetDriverVersion(driver, sizeof driver);
  (void)api.nvmlSystemGetCudaDriverVersion_v2(&cuda);
  std::vector<Gpu> gpus;
  for (unsigned index = 0; index < count; ++index) {
    Gpu gpu;
    gpu.index = index;
    nvmlDevice_t device = nullptr;
    if (const nvmlReturn_t result = api.nvmlDeviceGetHandleByIndex_v2(index, &device); result != NVML_SUCCESS)
      return fail(result);
    Reader reader(api, device, gpu);
    reader.identity();
    if (!is_wanted(gpu, wanted)) continue;
    gpu.values["timestamp"] = now();
    gpu.values["count"] = std::to_string(count);
    gpu.values["driver_version"] = driver;
    gpu.values["cuda_version"] = std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10);
    reader.use();
    reader.modes();
    reader.sensors();
    gpus.push_back(std::move(gpu));
  }
  if (gpus.empty()) failure = wanted.empty() ? "no GPU found" : "no GPU matches --id";
  return gpus;
}

}  // namespace gpupool::smi
