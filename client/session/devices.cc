#include "client/session/devices.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "client/process/log.h"
#include "client/session/session.h"
#include "common/text/gpu_uuid.h"
#include "protocol/driver/bus_ids.h"
#include "protocol/driver/cuda_header.h"

namespace gpupool::client {
namespace {

// Values that hide all devices on purpose are not reported.
void report_missing_device(const char* visible, const std::string& entry, size_t devices) {
  for (const char* const hides : {"", "-1", "NoDevFiles", "none", "void"}) {
    if (entry == hides) return;
  }
  log_error(
      "CUDA_VISIBLE_DEVICES=%.200s: device '%.50s' does not exist (devices of the servers: %zu, numbered "
      "from 0); this entry and all after it are ignored, as with CUDA",
      visible, entry.c_str(), devices);
}

std::vector<int> visible_ordinals(const std::vector<OfferedDevice>& devices, const char* visible) {
  std::vector<int> ordinals;
  if (!visible) {
    for (size_t i = 0; i < devices.size(); ++i) ordinals.push_back(static_cast<int>(i));
    return ordinals;
  }
  std::string list = visible;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    std::string entry = list.substr(at, comma - at);
    entry.erase(0, entry.find_first_not_of(" \t"));
    int ordinal = -1;
    if (entry.rfind("GPU-", 0) == 0) {  // possibly abbreviated
      for (size_t i = 0; i < devices.size(); ++i) {
        if (gpu_uuid_text(devices[i].description.uuid).rfind(entry, 0) == 0) ordinal = static_cast<int>(i);
      }
    } else if (!entry.empty()) {
      char* end = nullptr;
      const long value = std::strtol(entry.c_str(), &end, 10);
      if (end != entry.c_str() && value >= 0 && value < static_cast<long>(devices.size()))
        ordinal = static_cast<int>(value);
    }
    if (ordinal < 0) report_missing_device(visible, entry, devices.size());
    if (ordinal < 0 || std::count(ordinals.begin(), ordinals.end(), ordinal)) break;
    ordinals.push_back(ordinal);
    at = comma + 1;
  }
  return ordinals;
}

// CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED (CUDA 12.0), _HANDLE_TYPE_FABRIC_SUPPORTED (12.3).
constexpr int kIpcEventSupported = 125, kFabricSupported = 128;

// Clears the attributes for features that the device has but this client does not forward.
void clear_unforwarded_attributes(Device& device) {
  for (const int attribute : std::initializer_list<int> {
         CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
             CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
             CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
             CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED,
             CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
             CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
             CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, 129 /* UNIFIED_FUNCTION_POINTERS */,
             // The functions of protocol/driver/unsupported.def. By number, because older headers lack some
             // names.
             112 /* SPARSE_CUDA_ARRAY */, 114 /* TIMELINE_SEMAPHORE_INTEROP */,
             121 /* DEFERRED_MAPPING_CUDA_ARRAY */, 124 /* DMA_BUF */,
#if CUDA_VERSION < 12010
             132 /* MULTICAST */,
#endif
#if CUDA_VERSION < 12080
             136 /* MEM_DECOMPRESS_ALGORITHM_MASK */, 137 /* MEM_DECOMPRESS_MAXIMUM_LENGTH */,
#endif
             135 /* D3D12_CIG */, 138 /* VULKAN_CIG */, 141 /* HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT */,
             142 /* HOST_NUMA_MEMORY_POOLS */, 143 /* HOST_NUMA_MULTINODE_IPC */, 144 /* HOST_MEMORY_POOLS */,
             145 /* HOST_VIRTUAL_MEMORY_MANAGEMENT */, 146 /* HOST_ALLOC_DMA_BUF */
       }) {
    if (const auto found = device.attributes.find(attribute); found != device.attributes.end())
      found->second = 0;
  }
}

// Shareable handles are names issued by the server (client/api/shareable.cc), so all handle types are
// supported if the server shares memory.
void set_handle_type_attributes(Device& device) {
  auto& attributes = device.attributes;
  const auto found = attributes.find(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  const bool shares = found != attributes.end() && found->second != 0 && device.session->server_id() != 0;
  if (found != attributes.end()) found->second = shares;
  const auto set = [&](int attribute, int value) {
    if (const auto known = attributes.find(attribute); known != attributes.end())
      known->second = shares ? value : 0;
  };
  set(kFabricSupported, 1);
  set(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, kShareableHandleTypes);
  if (device.session->server_id() == 0) set(kIpcEventSupported, 0);
}

// A multicast object belongs to one server. If devices of several servers had the attribute, programs would
// create one object for all of them.
void hide_multicast_across_servers(Devices& devices) {
  const bool one_server = std::all_of(devices.begin(), devices.end(), [&](const auto& device) {
    return device->session == devices.front()->session;
  });
  for (const auto& device : devices) {
    const auto found = device->attributes.find(kMulticastSupported);
    if (!one_server && found != device->attributes.end()) found->second = 0;
  }
}

}  // namespace

uint64_t granularity_of(const hello::Device& described) {
  return described.granularity ? described.granularity : 2u << 20;
}

Devices make_devices(std::vector<OfferedDevice> offered, const char* visible) {
  Devices devices;
  std::vector<hello::Device*> all;
  for (OfferedDevice& device : offered) all.push_back(&device.description);
  cuda::make_bus_ids_unique(all);
  for (const int ordinal : visible_ordinals(offered, visible)) {
    const hello::Device& source = offered[ordinal].description;
    auto device = std::make_unique<Device>();
    device->ordinal = static_cast<int>(devices.size());
    device->session = offered[ordinal].session;
    device->server_ordinal = offered[ordinal].server_ordinal;
    device->name = source.name;
    device->uuid = source.uuid;
    device->uuid.resize(16);
    device->pci_bus_id = source.pci_bus_id;
    device->total_bytes = source.total_bytes;
    device->granularity = granularity_of(source);
    for (const auto& attribute : source.attributes) device->attributes[attribute.id] = attribute.value;
    clear_unforwarded_attributes(*device);
    set_handle_type_attributes(*device);
    devices.push_back(std::move(device));
  }
  hide_multicast_across_servers(devices);
  return devices;
}

}  // namespace gpupool::client
