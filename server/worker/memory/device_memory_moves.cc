// Oversubscription: moves an idle session's device memory to host memory, and back before the session
// continues.
#include <utility>

#include "server/worker/memory/device_memory.h"
#include "server/worker/memory/host_pages.h"

namespace gpupool::worker {

uint64_t DeviceMemory::move_out(int device, uint64_t bytes, uint64_t most, uint64_t keep) {
  uint64_t moved = 0;
  for (auto& [address, mapping] : mappings_) {
    if (moved >= bytes) break;
    if (mapping.device != device || mapping.moved || mapping.away || mapping.charge != 0 ||
        mapping.size > most - moved)
      continue;
    const uint64_t resident = ledger_.resident(device);
    if (resident < keep || mapping.size > resident - keep) continue;
    if (!move_out(address, mapping)) break;
    moved += mapping.size;
  }
  return moved;
}

bool DeviceMemory::move_out(uint64_t address, Mapping& mapping) {
  std::byte* const host = copy_to_host(address, mapping);
  return host && replace_with_host_copy(address, mapping, host);
}

// Returns null if there is no host memory or the copy failed.
std::byte* DeviceMemory::copy_to_host(uint64_t address, const Mapping& mapping) {
  std::byte* const host = take_host_pages(mapping.size);
  if (!host) return nullptr;
  if (scrubber_.copy_out(host, address, mapping.size, mapping.device) == CUDA_SUCCESS) return host;
  release_host_pages(host, mapping.size);
  return nullptr;
}

// Takes ownership of the copy in `host`, and frees it if the device cannot unmap the memory.
bool DeviceMemory::replace_with_host_copy(uint64_t address, Mapping& mapping, std::byte* host) {
  if (windows_) windows_->drop(address, mapping.size);
  unmapping(address, mapping.size);
  if (api_.cuMemUnmap(address, mapping.size) != CUDA_SUCCESS) {
    release_host_pages(host, mapping.size);
    return false;
  }
  api_.cuMemRelease(std::exchange(mapping.memory, 0));
  mapping.moved = host;
  ++moved_;
  ledger_.note_movable(mapping.device, -static_cast<int64_t>(mapping.size));
  ledger_.note_in_host(mapping.device, static_cast<int64_t>(mapping.size));
  return true;
}

CUresult DeviceMemory::move_back(std::chrono::nanoseconds* took) {
  FullDeviceWaiter::Wait wait{.device = -1, .returns = true};
  while (moved_out()) {  // during the wait for room, memory that is back may have to leave again
    for (auto& [address, mapping] : mappings_) {
      if (!mapping.moved) continue;
      if (wait.device != mapping.device) wait = {.device = mapping.device, .returns = true};
      wait.bytes = ledger_.in_host(mapping.device);
      CUresult result = create(&mapping.memory, mapping.size, properties_of(mapping.device), 0, wait);
      if (result != CUDA_SUCCESS) return result;
      const auto start = std::chrono::steady_clock::now();
      result = fill(address, mapping, mapping.moved);
      *took += std::chrono::steady_clock::now() - start;
      if (result != CUDA_SUCCESS) {
        api_.cuMemRelease(std::exchange(mapping.memory, 0));
        return result;
      }
      release_host(mapping);
      mapping.moved = nullptr;
      --moved_;
      ledger_.note_movable(mapping.device, static_cast<int64_t>(mapping.size));
    }
  }
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::fill(uint64_t address, const Mapping& mapping, const std::byte* from) {
  CUresult result = map_at(address, mapping);
  if (result != CUDA_SUCCESS) return result;
  result = scrubber_.copy_in(address, from, mapping.size, mapping.device);
  if (result != CUDA_SUCCESS) api_.cuMemUnmap(address, mapping.size);
  return result;
}

void DeviceMemory::release_host(const Mapping& mapping) {
  release_host_pages(mapping.moved, mapping.size);
  ledger_.note_in_host(mapping.device, -static_cast<int64_t>(mapping.size));
}

}  // namespace gpupool::worker
