#include "server/worker/memory/device_memory.h"

#include <sys/random.h>

#include <algorithm>

namespace gpupool::worker {
namespace {

// Per call of reserve_addresses(), because a driver may ignore every address hint.
constexpr int kMostReservations = 64;
constexpr uint64_t kSmallestAvoided = 1u << 30;

}  // namespace

void DeviceMemory::take_range(uint64_t base, uint64_t size) {
  base_ = base;
  size_ = size;
}

CUresult DeviceMemory::move(uint64_t preferred, uint64_t size) {
  if (!api_.cuMemAddressReserve || !api_.cuMemAddressFree) return CUDA_ERROR_NOT_SUPPORTED;
  collect();
  if (!mappings_.empty() || pending() || size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (preferred == base_ && size == size_) return CUDA_SUCCESS;
  CUdeviceptr got = 0;
  const CUresult result = api_.cuMemAddressReserve(&got, size, 0, preferred, 0);
  if (result != CUDA_SUCCESS) return result;
  release_range();
  take_range(got, size);
  return CUDA_SUCCESS;
}

void DeviceMemory::reserve_addresses(uint64_t base, uint64_t size) {
  if (!api_.cuMemAddressReserve || !api_.cuMemAddressFree) return;
  std::deque<std::pair<uint64_t, uint64_t>> wanted{{base, size}};
  for (int attempt = 0; attempt < kMostReservations && !wanted.empty() && avoided_.size() < kMaxAvoided;
       ++attempt) {
    const auto [at, bytes] = wanted.front();
    wanted.pop_front();
    if (bytes == 0) continue;
    CUdeviceptr got = 0;
    const CUresult result = api_.cuMemAddressReserve(&got, bytes, 0, at, 0);
    if (result == CUDA_SUCCESS && got == at) {
      avoided_.emplace_back(at, bytes);
      continue;
    }
    if (result == CUDA_SUCCESS) api_.cuMemAddressFree(got, bytes);
    const uint64_t half = bytes / 2 / kSmallestAvoided * kSmallestAvoided;
    if (half == 0) continue;
    wanted.emplace_back(at, half);
    wanted.emplace_back(at + half, bytes - half);
  }
}

void DeviceMemory::release_avoided() {
  for (const auto& [base, size] : avoided_) api_.cuMemAddressFree(base, size);
  avoided_.clear();
}

void DeviceMemory::release_range() {
  if (size_ != 0 && api_.cuMemAddressFree) api_.cuMemAddressFree(base_, size_);
  take_range(0, 0);
}

bool DeviceMemory::is_mapped(uint64_t address, uint64_t size) const {
  const auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first < address + size) return true;
  return next != mappings_.begin() && std::prev(next)->first + std::prev(next)->second.size > address;
}

CUresult DeviceMemory::map(uint64_t address, uint64_t size, int device, uint64_t granularity,
                           uint32_t peers) {
  if (!api_.cuMemCreate || !api_.cuMemMap || !api_.cuMemSetAccess || !api_.cuMemUnmap || !api_.cuMemRelease) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (granularity == 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (size == 0 || address % granularity != 0 || size % granularity != 0 || !in_range(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mappings_.size() >= kMaxMappings) return CUDA_ERROR_OUT_OF_MEMORY;
  if (is_mapped(address, size)) return CUDA_ERROR_INVALID_VALUE;
  const CUmemAllocationProp wanted = properties_of(device);
  ContextState* const current = contexts_.current();
  Mapping mapping{size, 0, current ? &current->owner() : nullptr, device};
  mapping.peers = peers;
  CUresult result = charge(device, size);
  if (result != CUDA_SUCCESS) return result;
  result = create(&mapping.memory, size, wanted, 0);
  if (result != CUDA_SUCCESS) return give_back_new(mapping), result;
  if (scrubber_.can_order_streams(device)) return add_new(address, mapping, true);
  return scrubber_.zero_unmapped(mapping.memory, size, wanted.location,
                                 [this, address, mapping](CUresult zeroed) {
                                   if (zeroed == CUDA_SUCCESS) return add_new(address, mapping, false);
                                   give_back_new(mapping);
                                   return zeroed;
                                 });
}

// If the memory was zeroed first, the client may by now have mapped something else at this address or have
// another range.
CUresult DeviceMemory::add_new(uint64_t address, const Mapping& mapping, bool to_be_zeroed) {
  CUresult result = in_range(address, mapping.size) && !is_mapped(address, mapping.size)
                        ? map_at(address, mapping)
                        : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS && to_be_zeroed) {
    result = scrubber_.start_clear(address, mapping.size);
    if (result != CUDA_SUCCESS) api_.cuMemUnmap(address, mapping.size);
  }
  if (result != CUDA_SUCCESS) return give_back_new(mapping), result;
  mappings_.emplace(address, mapping);
  ledger_.note_movable(mapping.device, static_cast<int64_t>(mapping.size));
  return CUDA_SUCCESS;
}

void DeviceMemory::give_back_new(const Mapping& mapping) {
  uncharge(mapping.device, mapping.size);
  // Memory that the device allocated counts in the peak. By now other charges may have raised the peak
  // further.
  if (mapping.memory == 0) return undo_peak(mapping.device);
  api_.cuMemRelease(mapping.memory);
}

CUmemAllocationProp DeviceMemory::properties_of(int device) const {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  wanted.allocFlags.gpuDirectRDMACapable = supports_gpudirect(device) ? 1 : 0;
  // Any allocation may be shared by cuIpcGetMemHandle later.
  if (shareable(device)) wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return wanted;
}

bool DeviceMemory::shareable(int device) const {
  int yes = 0;
  return api_.cuMemExportToShareableHandle && api_.cuDeviceGetAttribute &&
         api_.cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                   device) == CUDA_SUCCESS &&
         yes != 0;
}

CUresult DeviceMemory::share_charge(int device, uint64_t bytes, uint64_t* charge) {
  if (*charge != 0) return CUDA_SUCCESS;
  uint64_t id = 0;
  while (id == 0) {
    if (::getrandom(&id, sizeof id, 0) != sizeof id) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!ledger_.share(device, bytes, id)) return CUDA_ERROR_OUT_OF_MEMORY;
  *charge = id;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::join_charge(int device, uint64_t bytes, uint64_t charge) {
  const auto stop = std::chrono::steady_clock::now() + kLongestSettle;
  while (!ledger_.join(device, bytes, charge)) {
    if (wait_for_free(stop) || reclaim(device, true)) continue;
    ledger_.note_refusal(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::share(uint64_t address, ExportedHandles::Memory* memory, uint64_t* offset) {
  auto found = mappings_.upper_bound(address);
  if (found == mappings_.begin()) return CUDA_ERROR_INVALID_VALUE;
  --found;
  Mapping& mapping = found->second;
  if (address - found->first >= mapping.size) return CUDA_ERROR_INVALID_VALUE;
  if (!shareable(mapping.device) || mapping.moved) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult result = contexts_.await_clears(); result != CUDA_SUCCESS) return result;
  if (mapping.charge == 0) {
    if (const CUresult result = share_charge(mapping.device, mapping.size, &mapping.charge);
        result != CUDA_SUCCESS)
      return result;
    ledger_.note_movable(mapping.device, -static_cast<int64_t>(mapping.size));
    // The device may relocate the memory to share it.
    if (windows_) windows_->drop(found->first, mapping.size);
  }
  *memory = {mapping.memory, mapping.size, mapping.device, CU_MEM_HANDLE_TYPE_NONE, mapping.charge};
  *offset = address - found->first;
  return CUDA_SUCCESS;
}

// The memory may still hold another tenant's data: it must be zeroed before the client can access it.
CUresult DeviceMemory::map_at(uint64_t address, const Mapping& mapping) {
  CUresult result = api_.cuMemMap(address, mapping.size, 0, mapping.memory, 0);
  if (result != CUDA_SUCCESS) return result;
  result = set_access(address, mapping);
  if (result != CUDA_SUCCESS) api_.cuMemUnmap(address, mapping.size);
  return result;
}

// True if new memory should be created for direct access by network cards (GPUDirect RDMA).
bool DeviceMemory::supports_gpudirect(int device) const {
  int yes = 0;
  return windows_ && api_.cuDeviceGetAttribute &&
         api_.cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                   device) == CUDA_SUCCESS &&
         yes != 0;
}

bool DeviceMemory::is_cpu_accessible(uint64_t address, uint64_t size) const {
  if (!cpu_can_access_ || !in_range(address, size)) return false;
  auto mapping = mapping_of(address);
  for (uint64_t covered = address; covered < address + size; ++mapping) {
    if (mapping == mappings_.end() || mapping->first > covered) return false;
    covered = mapping->first + mapping->second.size;
  }
  return true;
}

bool DeviceMemory::register_for_rdma(uint64_t address, uint64_t size, std::vector<DeviceSpan>* spans) {
  if (!windows_ || !in_range(address, size)) return false;
  auto mapping = mapping_of(address);
  for (uint64_t at = address; at < address + size;) {
    if (mapping == mappings_.end() || mapping->first > at) return false;
    const uint64_t end = mapping->first + mapping->second.size;
    const uint64_t window = at / kWindowBytes * kWindowBytes;
    const uint64_t first = std::max(window, mapping->first), last = std::min(window + kWindowBytes, end);
    DeviceSpan& span = spans->emplace_back();
    if (!windows_->use(first, last - first, cpu_can_access_, &span)) return false;
    span.end = std::min(last, address + size);
    at = last;
    if (at == end) ++mapping;
  }
  return true;
}

// Returns the mapping that contains the address, or end().
std::map<uint64_t, DeviceMemory::Mapping>::const_iterator DeviceMemory::mapping_of(uint64_t address) const {
  auto mapping = mappings_.upper_bound(address);
  if (mapping == mappings_.begin()) return mappings_.end();
  --mapping;
  return address - mapping->first < mapping->second.size ? mapping : mappings_.end();
}

CUresult DeviceMemory::charge(int device, uint64_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  const auto stop = std::chrono::steady_clock::now() + kLongestSettle;
  while (!ledger_.reserve(device, bytes)) {
    if (wait_for_free(stop) || reclaim(device, true)) continue;
    ledger_.note_refusal(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::create(CUmemGenericAllocationHandle* memory, uint64_t size,
                              const CUmemAllocationProp& properties, unsigned long long flags) {
  FullDeviceWaiter::Wait wait{.device = properties.location.id, .bytes = size};
  return create(memory, size, properties, flags, wait);
}

CUresult DeviceMemory::create(CUmemGenericAllocationHandle* memory, uint64_t size,
                              const CUmemAllocationProp& properties, unsigned long long flags,
                              FullDeviceWaiter::Wait& wait) {
  if (!api_.cuMemCreate) return CUDA_ERROR_NOT_SUPPORTED;
  return with_room(wait, [&] { return api_.cuMemCreate(memory, size, &properties, flags); });
}

CUresult DeviceMemory::with_room(int device, uint64_t bytes, const std::function<CUresult()>& attempt) {
  FullDeviceWaiter::Wait wait{.device = device, .bytes = bytes};
  return with_room(wait, attempt);
}

CUresult DeviceMemory::with_room(FullDeviceWaiter::Wait& wait, const std::function<CUresult()>& attempt) {
  const auto stop = std::chrono::steady_clock::now() + kLongestSettle;
  while (true) {
    const CUresult result = attempt();
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    if (wait_for_free(stop) || reclaim(wait.device, false)) continue;
    if (!full_device_waiter_ || !full_device_waiter_->await(wait)) return result;
  }
}

CUresult DeviceMemory::with_reclaimed(int device, const std::function<CUresult()>& attempt) {
  CUresult result = attempt();
  while (result == CUDA_ERROR_OUT_OF_MEMORY && reclaim(device, false)) result = attempt();
  return result;
}

bool DeviceMemory::reclaim(int device, bool quota_full) {
  return reclaimer_ && reclaimer_->reclaim(
                           device, quota_full ? Reclaimer::Reason::quota_full : Reclaimer::Reason::gpu_full);
}

bool DeviceMemory::add_variable(uint64_t owner, uint64_t address, uint64_t size) {
  const auto [first, last] = variables_.equal_range(address);
  for (auto known = first; known != last; ++known) {
    if (known->second.first >= size) return true;
  }
  if (variables_.size() >= kMaxMappings) return false;
  variables_.emplace(address, std::pair(size, owner));
  return true;
}

bool DeviceMemory::owns(uint64_t address, uint64_t size) const {
  if (in_range(address, size)) return true;
  auto after = variables_.upper_bound(address);
  while (after != variables_.begin()) {
    --after;
    const auto& [known, owner] = after->second;
    if (address - after->first <= known && size <= known - (address - after->first)) return true;
    if (address != after->first) break;
  }
  return false;
}

}  // namespace gpupool::worker
