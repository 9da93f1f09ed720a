#include "server/worker/device/device_description.h"

#include <algorithm>
#include <bit>

#include "common/log/log.h"
#include "common/sanitizers.h"
#include "protocol/driver/cuda_header.h"
#include "server/worker/compute/device_partition.h"
#include "server/worker/device/device_library.h"

namespace gpupool::worker {
namespace {

// Newer drivers have attributes that this build's cuda.h lacks: pass on all attributes that the driver knows.
constexpr int kAttributesTried = 256;
static_assert(CU_DEVICE_ATTRIBUTE_MAX <= kAttributesTried);

constexpr uint64_t kMinPreferredRange = kThreadSanitized ? kThreadSanitizerEnd / 8 : 1ull << 40;
// PyTorch's expandable segments reserve 1.125 times a GPU's memory for each stream and memory pool that
// allocates on it.
constexpr uint64_t kRangePerMemory = 64;
constexpr uint64_t kMaxPreferredRange = 1ull << 44;
constexpr uint64_t kSmallestRange = 1ull << 30;
// Far from where Linux places heaps, libraries and stacks, so that these addresses are free in most clients
// as well. User space has 47 bits of addresses.
constexpr uint64_t kPreferredBases[] = {0x2000'0000'0000, 0x1000'0000'0000, 0x3000'0000'0000,
                                        0x6000'0000'0000};
constexpr uint64_t kEndOfPrograms = uint64_t{1} << 47;

class Describer {
 public:
  Describer(const DeviceLibrary& library, CUdevice device) : library_(library), device_(device) {}

  Result<control::Device> describe() {
    char text[256] = {};
    if (auto called = call("cuDeviceGetName", DEVICE_CALL(library_, cuDeviceGetName), text,
                           int{sizeof text - 1}, device_);
        !called) {
      return called.error();
    }
    out_.set_name(text);
    size_t total = 0;
    if (auto called = call("cuDeviceTotalMem", DEVICE_CALL(library_, cuDeviceTotalMem_v2), &total, device_);
        !called) {
      return called.error();
    }
    out_.set_total_bytes(total);
    CUuuid uuid{};
    if (auto called = call("cuDeviceGetUuid", DEVICE_CALL(library_, cuDeviceGetUuid_v2), &uuid, device_);
        !called) {
      return called.error();
    }
    out_.set_uuid(std::string(uuid.bytes, sizeof uuid.bytes));
    char bus_id[64] = {};
    if (call("cuDeviceGetPCIBusId", DEVICE_CALL(library_, cuDeviceGetPCIBusId), bus_id,
             int{sizeof bus_id - 1}, device_)) {
      out_.set_pci_bus_id(bus_id);
    }
    if (auto added = add_attributes(); !added) return added.error();
    add_virtual_memory();
    return std::move(out_);
  }

 private:
  template <class Function, class... Args>
  Result<void> call(const char* name, Function function, Args... args) {
    if (function == nullptr) return failed(name, "missing in the device library");
    if (const CUresult result = function(args...); result != CUDA_SUCCESS) {
      return failed(name, error_text(library_, result));
    }
    return {};
  }

  Error failed(const char* name, const std::string& why) {
    return {ErrorCode::unavailable, "device " + std::to_string(device_) + " of '" + library_.path() +
                                        "' cannot be described: " + name + ": " + why};
  }

  Result<void> add_attributes() {
    const auto get = DEVICE_CALL(library_, cuDeviceGetAttribute);
    if (get == nullptr) return failed("cuDeviceGetAttribute", "missing in the device library");
    for (int id = 1; id < kAttributesTried; ++id) {
      int value = 0;
      if (get(&value, static_cast<CUdevice_attribute>(id), device_) != CUDA_SUCCESS) continue;
      auto* attribute = out_.add_attributes();
      attribute->set_id(id);
      attribute->set_value(value);
      if (id == CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED) has_virtual_memory_ = value != 0;
    }
    return {};
  }

  void add_virtual_memory() {
    const auto get = DEVICE_CALL(library_, cuMemGetAllocationGranularity);
    if (!has_virtual_memory_ || get == nullptr || DEVICE_CALL(library_, cuMemAddressReserve) == nullptr)
      return;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_;
    size_t granularity = 0;
    if (get(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS || granularity == 0)
      return;
    out_.set_granularity(granularity);
    out_.set_has_virtual_memory(true);
  }

  const DeviceLibrary& library_;
  const CUdevice device_;
  control::Device out_;
  bool has_virtual_memory_ = false;
};

}  // namespace

bool is_monitored(const DeviceLibrary& library, int attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
      // softgpu reports made-up values, for programs that compute with them
      return library.symbol("softgpu_zeroes_memory") == nullptr;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    case CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD: return true;
    default: return false;
  }
}

Result<std::vector<control::Device>> describe_devices(const DeviceLibrary& library) {
  std::vector<control::Device> devices;
  const auto get = DEVICE_CALL(library, cuDeviceGet);
  if (get == nullptr)
    return Error{ErrorCode::unavailable, "device library '" + library.path() + "' has no cuDeviceGet"};
  for (int ordinal = 0; ordinal < library.device_count(); ++ordinal) {
    CUdevice device = 0;
    if (const CUresult result = get(&device, ordinal); result != CUDA_SUCCESS) {
      return Error{ErrorCode::unavailable, "device " + std::to_string(ordinal) + " of '" + library.path() +
                                               "' cannot be opened: " + error_text(library, result)};
    }
    auto described = Describer(library, device).describe();
    if (!described) return described.error();
    devices.push_back(std::move(*described));
  }
  return devices;
}

void describe_partitions(const DeviceLibrary& library, std::vector<control::Device>& devices) {
  DevicePartition partition;
  partition.load([&library](const char* name) { return library.symbol(name); });
  for (size_t ordinal = 0; ordinal < devices.size(); ++ordinal) {
    const auto divided = partition.divide(static_cast<CUdevice>(ordinal));
    devices[ordinal].set_partition_groups(divided.groups);
    devices[ordinal].set_group_multiprocessors(divided.multiprocessors);
    devices[ordinal].set_multiprocessors(divided.total);
  }
}

void limit_multiprocessors(const std::vector<quota::Groups>& groups, std::vector<control::Device>& devices) {
  for (size_t ordinal = 0; ordinal < std::min(groups.size(), devices.size()); ++ordinal) {
    control::Device& device = devices[ordinal];
    if (groups[ordinal] == 0) continue;
    const quota::Partitions::Gpu divided{device.partition_groups(), device.group_multiprocessors(),
                                         device.multiprocessors()};
    for (auto& attribute : *device.mutable_attributes()) {
      if (attribute.id() != CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) continue;
      attribute.set_value(static_cast<int32_t>(divided.count(groups[ordinal])));
    }
  }
}

void limit_memory(const quota::Ledger& ledger, std::vector<control::Device>& devices) {
  for (size_t ordinal = 0; ordinal < devices.size(); ++ordinal) {
    control::Device& device = devices[ordinal];
    device.set_memory_limited(ledger.limited());
    const auto room = ledger.room(static_cast<int>(ordinal));
    if (!room) continue;
    device.set_total_bytes(std::min<uint64_t>(device.total_bytes(), room->limit));
  }
}

namespace {

// Reserves `size` bytes at one of kPreferredBases, or else anywhere below kEndOfPrograms. Returns size 0 on
// failure.
AddressRange reserve(const DeviceLibrary& library, uint64_t size, CUresult* result) {
  const auto reserve = DEVICE_CALL(library, cuMemAddressReserve);
  const auto free = DEVICE_CALL(library, cuMemAddressFree);
  AddressRange elsewhere;
  for (const uint64_t preferred : kPreferredBases) {
    CUdeviceptr base = 0;
    *result = reserve(&base, size, 0, preferred, 0);  // a driver may ignore the address hint
    if (*result != CUDA_SUCCESS) continue;
    const bool usable = base <= kEndOfPrograms - size;
    if (usable && (base == preferred || free == nullptr)) {
      if (elsewhere.size != 0) free(elsewhere.base, elsewhere.size);
      return {base, size};
    }
    if (!usable) *result = CUDA_ERROR_OUT_OF_MEMORY;  // no usable addresses are left
    if (usable && elsewhere.size == 0)
      elsewhere = {base, size};
    else if (free != nullptr)
      free(base, size);
  }
  return elsewhere;
}

}  // namespace

uint64_t preferred_range(const std::vector<control::Device>& devices) {
  uint64_t memory = 0;
  for (const control::Device& device : devices)
    memory += std::min(device.total_bytes(), kMaxPreferredRange / kRangePerMemory);
  return std::clamp(std::bit_ceil(memory * kRangePerMemory), kMinPreferredRange, kMaxPreferredRange);
}

std::string summarize_devices(const DeviceLibrary& library, const std::vector<control::Device>& devices) {
  control::Devices all;
  all.set_driver_version(library.driver_version());
  for (const control::Device& device : devices) {
    control::Device& one = *all.add_devices();
    one.set_name(device.name());
    one.set_uuid(device.uuid());
    one.set_total_bytes(device.total_bytes());
    one.set_pci_bus_id(device.pci_bus_id());
    one.set_partition_groups(device.partition_groups());
    one.set_group_multiprocessors(device.group_multiprocessors());
    one.set_multiprocessors(device.multiprocessors());
    for (const auto& attribute : device.attributes()) {
      if (is_monitored(library, attribute.id())) *one.add_attributes() = attribute;
    }
  }
  return all.SerializeAsString();
}

AddressRange reserve_addresses(const DeviceLibrary& library, const std::vector<control::Device>& devices) {
  for (const control::Device& device : devices) {
    if (!device.has_virtual_memory()) return {};
  }
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  const bool can = DEVICE_CALL(library, cuMemAddressReserve) != nullptr;
  for (uint64_t size = preferred_range(devices); can && size >= kSmallestRange; size /= 2) {
    if (const AddressRange range = reserve(library, size, &result); range.size != 0) return range;
  }
  log::warning("no_address_range", {{"reason", error_text(library, result)}});
  return {};
}

}  // namespace gpupool::worker
