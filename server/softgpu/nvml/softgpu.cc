// The source of NVML's answers (protocol/nvml/source.h) for programs that load softgpu directly: the devices
// of softgpu's configuration. One thread at a time.
//
// softgpu's runtime is not started, because programs query NVML, fork, and start CUDA in the children. So the
// use of the devices is unknown, and queries of it return NVML_ERROR_NOT_SUPPORTED.
#include <cstdio>
#include <string>

#include "protocol/driver/driver_version.h"
#include "protocol/nvml/source.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/identity.h"

namespace gpupool::nvml {
namespace {

hello::Device describe(const softgpu::Config& config, int ordinal) {
  const CUuuid uuid = softgpu::device_uuid(config, ordinal);
  const softgpu::PciAddress pci = softgpu::device_pci(config, ordinal);
  char bus_id[32];
  std::snprintf(bus_id, sizeof bus_id, "%04x:%02x:%02x.0", static_cast<unsigned>(pci.domain),
                static_cast<unsigned>(pci.bus), static_cast<unsigned>(pci.slot));
  hello::Device device;
  device.name = softgpu::kDeviceName;
  device.uuid.assign(uuid.bytes, sizeof uuid.bytes);
  device.total_bytes = config.memory_bytes;
  device.pci_bus_id = bus_id;
  device.attributes = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, config.capability_major},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, config.capability_minor},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, softgpu::multiprocessors(config)},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
      {CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD, 0},
  };
  return device;
}

class Softgpu final : public Source {
 public:
  explicit Softgpu(const softgpu::Config& config) {
    for (int ordinal = 0; ordinal < config.devices; ++ordinal) devices_.push_back(describe(config, ordinal));
  }
  const std::vector<hello::Device>& devices() const override { return devices_; }
  int driver_version() const override { return softgpu::driver_version(); }
  const monitor::State* look() override { return nullptr; }
  nvmlReturn_t unavailable() const override { return NVML_ERROR_NOT_SUPPORTED; }
  Window window() override { return {}; }
  void abandon() override {}

 private:
  std::vector<hello::Device> devices_;
};

}  // namespace

Result<std::vector<std::unique_ptr<Source>>> open_sources(bool) {
  const auto read = softgpu::read_config();
  if (const auto* const wrong = std::get_if<std::string>(&read)) return Error{ErrorCode::invalid, *wrong};
  std::vector<std::unique_ptr<Source>> sources;
  sources.push_back(std::make_unique<Softgpu>(std::get<softgpu::Config>(read)));
  return sources;
}

void report_failure(const Error& error) {
  std::fprintf(stderr, "softgpu: NVML: %s\n", error.message.c_str());
}

}  // namespace gpupool::nvml
