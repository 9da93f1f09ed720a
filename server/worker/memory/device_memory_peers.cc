// Access of devices and the CPU to the session's mappings. cuCtxEnablePeerAccess does not apply to virtual
// memory: each accessing device needs cuMemSetAccess, which is called here for peers. Memory pools have
// access rights of their own (cuMemPoolSetAccess).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "common/log/log.h"
#include "server/worker/memory/device_memory.h"

namespace gpupool::worker {
namespace {

// Reads and writes one page through a pipe: if the CPU cannot access the page, the system call fails with
// EFAULT, whereas a load would kill the process.
bool cpu_can_use_page(uint64_t address) {
  constexpr size_t kPage = 4096;  // fits into a pipe
  auto* const page = reinterpret_cast<void*>(address);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  const bool usable =
      ::write(ends[1], page, kPage) == ssize_t{kPage} && ::read(ends[0], page, kPage) == ssize_t{kPage};
  ::close(ends[0]);
  ::close(ends[1]);
  return usable;
}

}  // namespace

std::vector<int> DeviceMemory::peers_of(int device) const {
  std::set<int> peers;
  for (const auto& [accessing, accessed] : peers_) {
    if (accessed->device == device && accessing->device != device) peers.insert(accessing->device);
  }
  return {peers.begin(), peers.end()};
}

// True if the CPU can access the device's memory in principle, as with softgpu or coherent links.
bool DeviceMemory::host_may_access(int device) const {
  int yes = 0;
  return api_.cuDeviceGetAttribute &&
         api_.cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, device) ==
             CUDA_SUCCESS &&
         yes != 0;
}

// Grants access to the mapping's device, to its peers and, where the device supports it, to the CPU. The
// driver's claim is verified on the first mapping of each device.
CUresult DeviceMemory::set_access(uint64_t address, const Mapping& mapping) {
  constexpr auto kHost = static_cast<CUmemLocationType>(2);  // CU_MEM_LOCATION_TYPE_HOST, CUDA 12.2
  std::vector<CUmemAccessDesc> access{
      {{CU_MEM_LOCATION_TYPE_DEVICE, mapping.device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  std::set<int> peers;
  for (const int peer : peers_of(mapping.device)) peers.insert(peer);
  for (int device = 0; device < 32; ++device) {
    if ((mapping.peers >> device & 1) != 0) peers.insert(device);
  }
  peers.erase(mapping.device);
  for (const int peer : peers)
    access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, peer}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  if (cpu_can_access_) {
    access.push_back({{kHost, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    const bool known = cpu_accessible_devices_.contains(mapping.device);
    if ((known || host_may_access(mapping.device)) &&
        api_.cuMemSetAccess(address, mapping.size, access.data(), access.size()) == CUDA_SUCCESS) {
      if (known || cpu_can_use_page(address))
        return cpu_accessible_devices_.insert(mapping.device), CUDA_SUCCESS;
      log::warning(
          "host_access_fails",
          {{"device", mapping.device},
           {"reason",
            "the driver grants the CPU access to device memory, but reading it fails; copies are staged"}});
    }
    access.pop_back();
    cpu_can_access_ = false;
  }
  return api_.cuMemSetAccess(address, mapping.size, access.data(), access.size());
}

CUresult DeviceMemory::allow_access(const ContextState& accessing, const ContextState& accessed) {
  const auto before = peers_of(accessed.device);
  peers_.emplace(&accessing, &accessed);
  if (accessing.device == accessed.device || std::ranges::find(before, accessing.device) != before.end())
    return CUDA_SUCCESS;
  const CUresult result =
      set_peer_access(accessing.device, accessed.device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (result != CUDA_SUCCESS) forbid_access(accessing, accessed);
  return result;
}

void DeviceMemory::forbid_access(const ContextState& accessing, const ContextState& accessed) {
  if (peers_.erase({&accessing, &accessed}) == 0 || accessing.device == accessed.device) return;
  const auto left = peers_of(accessed.device);
  if (std::ranges::find(left, accessing.device) != left.end())
    return;  // another context of that device still has access
  (void)set_peer_access(accessing.device, accessed.device, CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

// Applies the access to all mappings of `device`; returns the first error.
CUresult DeviceMemory::set_peer_access(int peer, int device, CUmemAccess_flags flags) {
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, peer}, flags};
  CUresult first_error = CUDA_SUCCESS;
  for (const auto& [address, mapping] : mappings_) {
    if (mapping.device != device || mapping.moved || mapping.away || (mapping.peers >> peer & 1) != 0)
      continue;
    const CUresult result = api_.cuMemSetAccess(address, mapping.size, &access, 1);
    if (first_error == CUDA_SUCCESS) first_error = result;
  }
  return first_error;
}

void DeviceMemory::note_access(uint64_t address, uint64_t size, std::span<const CUmemAccessDesc> access) {
  for (auto mapping = mappings_.lower_bound(address);
       mapping != mappings_.end() && mapping->first - address < size; ++mapping) {
    for (const CUmemAccessDesc& one : access) {
      if (one.location.type != CU_MEM_LOCATION_TYPE_DEVICE || one.location.id < 0 || one.location.id >= 32)
        continue;
      const uint32_t bit = 1u << one.location.id;
      mapping->second.peers = one.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? mapping->second.peers & ~bit
                                                                         : mapping->second.peers | bit;
    }
  }
}

int DeviceMemory::device_of(uint64_t address) const {
  auto found = mappings_.upper_bound(address);
  if (found == mappings_.begin()) return -1;
  --found;
  return address - found->first < found->second.size ? found->second.device : -1;
}

}  // namespace gpupool::worker
