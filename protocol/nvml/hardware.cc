// Modes and sensors of the GPUs, and the topology between them. Values that a server's device does not
// provide are NVML_ERROR_NOT_SUPPORTED.
#include <chrono>

#include "protocol/driver/cuda_header.h"
#include "protocol/nvml/library.h"

using namespace gpupool;
using namespace gpupool::nvml;

namespace {

enum Clock : unsigned { kGraphics, kSm, kMemory, kVideo };
constexpr unsigned kP2pOk = 0, kP2pNotSupported = 5;
constexpr unsigned kTopologySystem = 50;  // NVML_TOPOLOGY_SYSTEM, the farthest level within one machine
constexpr unsigned kMostP2pIndexes = 7;

template <class Value, class Out>
nvmlReturn_t constant(nvmlDevice_t device, Value value, Out* out) {
  return library().with_device(device, [&](const Device&) { return give(std::optional(value), out); });
}

template <class Out>
nvmlReturn_t attribute(nvmlDevice_t device, int id, Out* out) {
  return library().with_device(device, [&](const Device& known) {
    const int value = known.attribute(id);
    return give(value < 0 ? std::nullopt : std::optional(value), out);
  });
}

// Returns `read(sensors)`. Other arguments must have been checked.
template <class Out, class Read>
nvmlReturn_t sensor(nvmlDevice_t device, Out* out, Read read) {
  return library().with_device(device, [&](const Device& known) {
    const monitor::State* const state = known.source->look();
    if (!state) return known.source->unavailable();
    const auto& sensors = state->gpus[known.place].sensors;
    return give(sensors ? read(*sensors) : decltype(read(*sensors))(), out);
  });
}

nvmlReturn_t wrong_argument(nvmlDevice_t device) {
  return library().with_device(device, [](const Device&) { return NVML_ERROR_INVALID_ARGUMENT; });
}

std::optional<uint32_t> clock_of(const monitor::Sensors& sensors, unsigned type) {
  switch (type) {
    case kGraphics: return sensors.graphics_mhz;
    case kSm: return sensors.sm_mhz;
    case kMemory: return sensors.memory_mhz;
    default: return sensors.video_mhz;
  }
}

template <class Answer>
nvmlReturn_t with_both(nvmlDevice_t first, nvmlDevice_t second, Answer answer) {
  return library().with_library([&](const Library& open) {
    const Device* const a = open.find(first);
    const Device* const b = open.find(second);
    return a && b ? answer(*a, *b) : NVML_ERROR_INVALID_ARGUMENT;
  });
}

// Answers the NVML_FI_DEV_... fields that are known here.
nvmlReturn_t field(const Device& device, const monitor::State& state, nvmlFieldValue_t& value) {
  constexpr unsigned kUnsigned = 1, kUnsignedLongLong = 3;
  const auto& sensors = state.gpus[device.place].sensors;
  const auto number = [&](std::optional<uint64_t> known, unsigned type) {
    if (!known) return NVML_ERROR_NOT_SUPPORTED;
    value.valueType = type;
    value.value = {};
    if (type == kUnsigned)
      value.value.uiVal = static_cast<unsigned>(*known);
    else
      value.value.ullVal = *known;
    return NVML_SUCCESS;
  };
  const auto ecc = device.attribute(CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
  switch (value.fieldId) {
    case 1:                                                                                   // ECC_CURRENT
    case 2: return number(ecc < 0 ? std::nullopt : std::optional<uint64_t>(ecc), kUnsigned);  // ECC_PENDING
    case 82: return number(sensors ? sensors->memory_temperature : std::nullopt, kUnsigned);  // MEMORY_TEMP
    case 83:
      return number(sensors ? sensors->energy_millijoules : std::nullopt,
                    kUnsignedLongLong);    // TOTAL_ENERGY_CONSUMPTION
    case 91: return number(0, kUnsigned);  // NVLINK_LINK_COUNT
    case 185:                              // POWER_AVERAGE
    case 186: return number(sensors ? sensors->power_milliwatts : std::nullopt, kUnsigned);  // POWER_INSTANT
    case 190:
      return number(sensors ? sensors->power_limit_milliwatts : std::nullopt,
                    kUnsigned);  // POWER_CURRENT_LIMIT
    default: return NVML_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int* mode) {
  return attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, mode);
}
// A setting of the server's driver, which poold does not read.
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int*) {
  return library().with_device(device, [](const Device&) { return NVML_ERROR_NOT_SUPPORTED; });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned int* mode) {
  return constant(device, 0, mode);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned int* is) {
  return constant(device, 0, is);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned int* mode) {
  return constant(device, 0, mode);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  return constant(device, 0, count);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int* is) {
  return constant(device, 0, is);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int* current,
                                              unsigned int* pending) {
  if (!pending) return wrong_argument(device);
  const nvmlReturn_t result = attribute(device, CU_DEVICE_ATTRIBUTE_ECC_ENABLED, current);
  if (result == NVML_SUCCESS) *pending = *current;
  return result;
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned int* mode) {
  return attribute(device, CU_DEVICE_ATTRIBUTE_ECC_ENABLED, mode);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type,
                                                   unsigned int* mhz) {
  if (type > kVideo) return wrong_argument(device);
  return library().with_device(device, [&](const Device& known) {
    const int khz = type == kVideo ? 0
                                   : known.attribute(type == kMemory ? CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE
                                                                     : CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
                                                     0);
    return give(khz > 0 ? std::optional(khz / 1000) : std::nullopt, mhz);
  });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int* mhz) {
  if (type > kVideo) return wrong_argument(device);
  return sensor(device, mhz, [type](const monitor::Sensors& sensors) { return clock_of(sensors, type); });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id,
                                            unsigned int* mhz) {
  constexpr unsigned kCurrent = 0, kLast = 3;
  if (id > kLast) return wrong_argument(device);
  if (id == kCurrent) return nvmlDeviceGetClockInfo(device, type, mhz);
  return library().with_device(device, [](const Device&) { return NVML_ERROR_NOT_SUPPORTED; });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int type,
                                                  unsigned int* degrees) {
  if (type != 0) return wrong_argument(device);
  return sensor(device, degrees, [](const monitor::Sensors& sensors) { return sensors.temperature; });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  if (!temperature || temperature->sensorType != 0) return wrong_argument(device);
  if (temperature->version != NVML_STRUCT_VERSION(nvmlTemperature_t, 1)) {
    return library().with_device(device, [](const Device&) { return NVML_ERROR_ARGUMENT_VERSION_MISMATCH; });
  }
  return sensor(device, &temperature->temperature,
                [](const monitor::Sensors& sensors) { return sensors.temperature; });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts) {
  return sensor(device, milliwatts, [](const monitor::Sensors& sensors) { return sensors.power_milliwatts; });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int* milliwatts) {
  return sensor(device, milliwatts,
                [](const monitor::Sensors& sensors) { return sensors.power_limit_milliwatts; });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int* milliwatts) {
  return nvmlDeviceGetEnforcedPowerLimit(device, milliwatts);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                             unsigned long long* millijoules) {
  return sensor(device, millijoules,
                [](const monitor::Sensors& sensors) { return sensors.energy_millijoules; });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int* percent) {
  return sensor(device, percent, [](const monitor::Sensors& sensors) { return sensors.fan_percent; });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int* state) {
  return sensor(device, state, [](const monitor::Sensors& sensors) { return sensors.performance_state; });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned int* state) {
  return nvmlDeviceGetPerformanceState(device, state);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error,
                                                     unsigned int counter, unsigned long long* count) {
  if (error > 1 || counter > 1) return wrong_argument(device);
  const bool since_load = counter == 0;
  return sensor(device, count, [&](const monitor::Sensors& sensors) {
    return !since_load ? std::nullopt : error == 0 ? sensors.ecc_corrected : sensors.ecc_uncorrected;
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  return library().with_device(device, [&](const Device& known) {
    if (!values || count <= 0) return NVML_ERROR_INVALID_ARGUMENT;
    const monitor::State* const state = known.source->look();
    if (!state) return known.source->unavailable();
    using std::chrono::microseconds;
    const auto now =
        std::chrono::duration_cast<microseconds>(std::chrono::system_clock::now().time_since_epoch());
    for (int i = 0; i < count; ++i) {
      values[i].timestamp = now.count();
      values[i].latencyUsec = 0;
      values[i].nvmlReturn = field(known, *state, values[i]);
    }
    return NVML_SUCCESS;
  });
}

// Within one server the driver decides about peer access (cuDeviceCanAccessPeer), and callers such as NCCL
// ask it too, so the answer is always yes here. Between servers there is no peer access; copies go from
// server to server.
NVML_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, unsigned int index,
                                                unsigned int* status) {
  return with_both(first, second, [&](const Device& a, const Device& b) {
    if (index >= kMostP2pIndexes) return NVML_ERROR_INVALID_ARGUMENT;
    return give(std::optional(a.source == b.source ? kP2pOk : kP2pNotSupported), status);
  });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second,
                                                             unsigned int* level) {
  return with_both(first, second, [&](const Device& a, const Device& b) {
    return &a == &b ? NVML_ERROR_INVALID_ARGUMENT : give(std::optional(kTopologySystem), level);
  });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t first, nvmlDevice_t second, int* is) {
  return with_both(first, second,
                   [&](const Device& a, const Device& b) { return give(std::optional(&a == &b), is); });
}
