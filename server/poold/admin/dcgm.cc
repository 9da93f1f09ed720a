#include "server/poold/admin/dcgm.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace gpupool::server {
namespace {

using prometheus::MetricType;
using Value = std::optional<double>;

constexpr double kMiB = 1 << 20;
constexpr std::string_view kKubernetesLabels[] = {"namespace", "pod", "container"};

struct DcgmRow {
  const char* name;
  const char* help;
  MetricType type;
  Value (*value)(const admin::GpuSensors& gpu);
};

#define OF_SENSORS(member, factor)                                 \
  [](const admin::GpuSensors& gpu) -> Value {                      \
    if (!gpu.sensors().has_##member()) return std::nullopt;        \
    return static_cast<double>(gpu.sensors().member()) * (factor); \
  }
#define OF_GPU(member, factor)                           \
  [](const admin::GpuSensors& gpu) -> Value {            \
    if (!gpu.has_##member()) return std::nullopt;        \
    return static_cast<double>(gpu.member()) * (factor); \
  }

// Names, units and types of dcgm-exporter's default counters.
const DcgmRow kDcgmRows[] = {
    {"DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", MetricType::Gauge, OF_SENSORS(sm_mhz, 1)},
    {"DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", MetricType::Gauge,
     OF_SENSORS(memory_mhz, 1)},
    {"DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", MetricType::Gauge,
     OF_SENSORS(memory_temperature, 1)},
    {"DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", MetricType::Gauge, OF_SENSORS(temperature, 1)},
    {"DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", MetricType::Gauge, OF_SENSORS(power_milliwatts, 1e-3)},
    {"DCGM_FI_DEV_POWER_MGMT_LIMIT", "Current power limit (in W).", MetricType::Gauge,
     OF_SENSORS(power_limit_milliwatts, 1e-3)},
    {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).",
     MetricType::Counter, OF_SENSORS(energy_millijoules, 1)},
    {"DCGM_FI_DEV_FAN_SPEED", "Fan speed (in %).", MetricType::Gauge, OF_SENSORS(fan_percent, 1)},
    {"DCGM_FI_DEV_PSTATE", "Performance state (0: fastest).", MetricType::Gauge,
     OF_SENSORS(performance_state, 1)},
    {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Total number of single-bit volatile ECC errors.", MetricType::Counter,
     OF_SENSORS(ecc_corrected, 1)},
    {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Total number of double-bit volatile ECC errors.", MetricType::Counter,
     OF_SENSORS(ecc_uncorrected, 1)},
    {"DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", MetricType::Gauge, OF_GPU(gpu_percent, 1)},
    {"DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", MetricType::Gauge, OF_GPU(memory_percent, 1)},
    {"DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", MetricType::Gauge,
     OF_GPU(memory_used_bytes, 1 / kMiB)},
    {"DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", MetricType::Gauge,
     OF_GPU(memory_free_bytes, 1 / kMiB)},
    {"DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", MetricType::Gauge,
     OF_GPU(memory_reserved_bytes, 1 / kMiB)},
};
#undef OF_SENSORS
#undef OF_GPU

void add_kubernetes_labels(const admin::Tenant& tenant, Labels& to) {
  for (const std::string_view key : kKubernetesLabels) {
    for (const std::string& label : tenant.labels()) {
      if (!label.starts_with(key) || label.size() <= key.size() || label[key.size()] != '=') continue;
      to.push_back({std::string(key), label.substr(key.size() + 1)});
      break;
    }
  }
}

bool sees_gpu(const admin::Tenant& tenant, uint32_t gpu) {
  return std::find(tenant.gpus().begin(), tenant.gpus().end(), gpu) != tenant.gpus().end();
}

// Returns the lease that has the GPU; null if there is none, or several share it.
const admin::Tenant* only_lease_of(const admin::Snapshot& snapshot, uint32_t gpu) {
  const admin::Tenant* only = nullptr;
  for (const admin::Tenant& tenant : snapshot.tenants()) {
    if (!tenant.leased() || !sees_gpu(tenant, gpu)) continue;
    if (only) return nullptr;
    only = &tenant;
  }
  return only;
}

Labels dcgm_labels(const admin::Snapshot& snapshot, const admin::Gpu& gpu, const std::string& host) {
  const std::string index = std::to_string(gpu.index());
  Labels labels{{"gpu", index},
                {"UUID", gpu.uuid()},
                {"pci_bus_id", gpu.pci_bus_id()},
                {"device", "nvidia" + index},
                {"modelName", gpu.name()},
                {"Hostname", host},
                {"DCGM_FI_DRIVER_VERSION", gpu.sensors().driver_version()}};
  if (const admin::Tenant* const lease = only_lease_of(snapshot, gpu.index()))
    add_kubernetes_labels(*lease, labels);
  return labels;
}

}  // namespace

void add_dcgm_metrics(const admin::Snapshot& snapshot, const std::string& host, MetricsPage& page) {
  for (const DcgmRow& row : kDcgmRows) {
    std::optional<MetricsPage::Family> family;
    for (const admin::Gpu& gpu : snapshot.gpus()) {
      const Value value = gpu.has_sensors() ? row.value(gpu.sensors()) : std::nullopt;
      if (!value) continue;
      if (!family) family.emplace(page.named(row.name, row.help, row.type));
      family->add(dcgm_labels(snapshot, gpu, host), *value);
    }
  }
}

void add_lease_labels(const admin::Snapshot& snapshot, MetricsPage& page) {
  auto family = page.gauge("tenant_labels", "Always 1; the labels of a lease's Kubernetes objects.");
  for (const admin::Tenant& tenant : snapshot.tenants()) {
    Labels labels{{"tenant", tenant.name()}};
    add_kubernetes_labels(tenant, labels);
    if (labels.size() > 1) family.add(std::move(labels), 1);
  }
}

}  // namespace gpupool::server
