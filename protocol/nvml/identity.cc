// Which GPUs there are and their properties, from the servers' hellos at nvmlInit.
#include <strings.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>

#include "common/text/gpu_uuid.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/driver/pci_address.h"
#include "protocol/nvml/library.h"

using namespace gpupool::nvml;

namespace {

template <class Is>
nvmlReturn_t find(nvmlDevice_t* handle, Is is) {
  return library().with_library([&](const Library& open) {
    if (!handle) return NVML_ERROR_INVALID_ARGUMENT;
    const auto& devices = open.devices();
    const auto found =
        std::find_if(devices.begin(), devices.end(), [&](const auto& device) { return is(*device); });
    if (found == devices.end()) return NVML_ERROR_NOT_FOUND;
    *handle = Library::handle_of(**found);
    return NVML_SUCCESS;
  });
}

template <size_t N>
void write_bus_id(char (&to)[N], int digits, const Device& device) {
  std::snprintf(to, N, "%0*X:%02X:%02X.0", digits, device.domain, device.bus, device.slot);
}

void write_place(const Device& device, nvmlPciInfo_t& pci) {
  write_bus_id(pci.busIdLegacy, 4, device);
  pci.domain = device.domain;
  pci.bus = device.bus;
  pci.device = device.slot;
  pci.pciDeviceId = 0;  // CUDA does not report the PCI device id
}

int major_of(const Device& device) {
  return device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
}
int minor_of(const Device& device) {
  return device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
}

unsigned architecture(int major, int minor) {
  constexpr unsigned kUnknown = 0xffffffff;
  switch (major) {
    case 3: return 2;
    case 5: return 3;
    case 6: return 4;
    case 7: return minor >= 5 ? 6 : 5;
    case 8: return minor == 9 ? 8 : 7;
    case 9: return 9;
    case 10:
    case 11:
    case 12: return 10;
    default: return kUnknown;
  }
}

int cores_of_multiprocessor(int major, int minor) {
  switch (major) {
    case 3: return 192;
    case 5: return 128;
    case 6: return minor == 0 ? 64 : 128;
    case 7: return 64;
    case 8: return minor == 0 ? 64 : 128;
    default: return 128;
  }
}

unsigned brand(const std::string& name) {
  struct Beginning {
    const char* text;
    unsigned brand;
  };
  constexpr Beginning kBeginnings[] = {{"Quadro RTX", 12},    {"Quadro", 1},      {"Tesla", 2},
                                       {"NVIDIA GeForce", 5}, {"GeForce", 5},     {"NVIDIA TITAN", 6},
                                       {"TITAN", 6},          {"NVIDIA RTX", 13}, {"NVIDIA", 14}};
  for (const Beginning& beginning : kBeginnings) {
    if (name.starts_with(beginning.text)) return beginning.brand;
  }
  return 0;
}

}  // namespace

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int* count) {
  return library().with_library(
      [&](const Library& open) { return give(std::optional(open.devices().size()), count); });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  return nvmlDeviceGetCount(count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  const nvmlReturn_t found = find(device, [&](const Device& known) { return known.index == index; });
  return found == NVML_ERROR_NOT_FOUND ? NVML_ERROR_INVALID_ARGUMENT : found;
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex(index, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (!uuid) return library().with_library([](auto&) { return NVML_ERROR_INVALID_ARGUMENT; });
  return find(device, [&](const Device& known) {
    return ::strcasecmp(gpupool::gpu_uuid_text(known.description.uuid).c_str(), uuid) == 0;
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t* uuid, nvmlDevice_t* device) {
  if (!uuid) return library().with_library([](auto&) { return NVML_ERROR_INVALID_ARGUMENT; });
  if (uuid->version != NVML_STRUCT_VERSION(nvmlUUID_t, 1))
    return library().with_library([](auto&) { return NVML_ERROR_ARGUMENT_VERSION_MISMATCH; });
  if (uuid->type == 1)
    return nvmlDeviceGetHandleByUUID(
        std::string(uuid->value.str, ::strnlen(uuid->value.str, sizeof uuid->value.str)).c_str(), device);
  if (uuid->type != 2) return library().with_library([](auto&) { return NVML_ERROR_INVALID_ARGUMENT; });
  return find(device, [&](const Device& known) {
    return std::memcmp(known.description.uuid.data(), uuid->value.bytes, sizeof uuid->value.bytes) == 0;
  });
}

// Accepts "0000:01:00.0" with a domain of any length or none, with or without the function.
NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* id, nvmlDevice_t* device) {
  const auto address = id ? gpupool::cuda::parse_pci_address(id) : std::nullopt;
  if (!address) return library().with_library([](auto&) { return NVML_ERROR_INVALID_ARGUMENT; });
  return find(device, [&](const Device& known) {
    return known.domain == address->domain && known.bus == address->bus && known.slot == address->device;
  });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId(id, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  return library().with_device(
      device, [&](const Device& known) { return copy_text(known.description.name, name, length); });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int* type) {
  return library().with_device(
      device, [&](const Device& known) { return give(std::optional(brand(known.description.name)), type); });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
  return library().with_device(device,
                               [&](const Device& known) { return give(std::optional(known.index), index); });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  return library().with_device(device, [&](const Device& known) {
    return copy_text(gpupool::gpu_uuid_text(known.description.uuid), uuid, length);
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return library().with_device(device, [&](const Device& known) {
    if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
    write_place(known, *pci);
    return NVML_SUCCESS;
  });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  const nvmlReturn_t result = nvmlDeviceGetPciInfo(device, pci);
  if (result == NVML_SUCCESS) pci->pciSubSystemId = 0;
  return result;
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return library().with_device(device, [&](const Device& known) {
    if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
    *pci = {};
    write_place(known, *pci);
    write_bus_id(pci->busId, 8, known);
    return NVML_SUCCESS;
  });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t* pci) {
  return library().with_device(device, [&](const Device& known) {
    if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
    const unsigned version = NVML_STRUCT_VERSION(nvmlPciInfoExt_t, 1);
    if (pci->version != version) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *pci = {.version = version,
            .domain = known.domain,
            .bus = known.bus,
            .device = known.slot,
            .pciDeviceId = 0,
            .pciSubSystemId = 0,
            .baseClass = 3,
            .subClass = 2,
            .busId = {}};
    write_bus_id(pci->busId, 8, known);
    return NVML_SUCCESS;
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int* out) {
  return library().with_device(device, [&](const Device& known) {
    return give(std::optional(architecture(major_of(known), minor_of(known))), out);
  });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  return library().with_device(device, [&](const Device& known) {
    if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
    *major = major_of(known);
    *minor = minor_of(known);
    return NVML_SUCCESS;
  });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int* cores) {
  return library().with_device(device, [&](const Device& known) {
    const int each = cores_of_multiprocessor(major_of(known), minor_of(known));
    return give(std::optional(each * known.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0)), cores);
  });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int* bits) {
  return library().with_device(device, [&](const Device& known) {
    const int width = known.attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 0);
    return give(width > 0 ? std::optional(width) : std::nullopt, bits);
  });
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int* is) {
  return library().with_device(device, [&](const Device& known) {
    return give(std::optional(known.attribute(CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD, 0)), is);
  });
}
