// A checkpointed session's device memory: all of it lies in host memory and counts in no quota.
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <utility>

#include "server/worker/device_memory.h"

namespace gpupool::worker {

bool DeviceMemory::shares() const {
  return std::any_of(mappings_.begin(), mappings_.end(), [](const auto& known) { return known.second.charge != 0; });
}

CUresult DeviceMemory::check_out(uint64_t most) {
  uint64_t bytes = 0;
  for (const auto& [address, mapping] : mappings_) bytes += mapping.size;
  if (bytes > most) return CUDA_ERROR_OUT_OF_MEMORY;
  std::map<uint64_t, std::byte*> copies;  // nothing leaves the device before all is copied
  for (const auto& [address, mapping] : mappings_) {
    if (mapping.moved) continue;
    if (std::byte* const copy = copy_to_host(address, mapping)) {
      copies[address] = copy;
      continue;
    }
    for (const auto& [done, host] : copies) ::munmap(host, mappings_.at(done).size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (auto copy = copies.begin(); copy != copies.end(); copy = copies.erase(copy)) {
    if (take_off(copy->first, mappings_.at(copy->first), copy->second)) continue;
    for (auto rest = std::next(copy); rest != copies.end(); ++rest) ::munmap(rest->second, mappings_.at(rest->first).size);
    std::chrono::nanoseconds took{};
    const CUresult back = move_back(&took);
    if (back != CUDA_SUCCESS) outbox_.end("memory of a checkpoint that failed cannot come back: CUDA error " + std::to_string(back));
    return CUDA_ERROR_UNKNOWN;
  }
  for (const auto& [address, mapping] : mappings_) {
    ledger_.note_in_host(mapping.device, -static_cast<int64_t>(mapping.size));
    ledger_.note_checkpointed(mapping.device, static_cast<int64_t>(mapping.size));
    uncharge(mapping.device, mapping.size);
  }
  checked_out_ = true;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::check_in() {
  std::map<int, uint64_t> bytes;  // of each device
  for (const auto& [address, mapping] : mappings_) bytes[mapping.device] += mapping.size;
  const auto give_back = [&](auto end) {
    for (auto charged = bytes.begin(); charged != end; ++charged) uncharge(charged->first, charged->second);
  };
  for (auto wanted = bytes.begin(); wanted != bytes.end(); ++wanted) {
    if (ledger_.reserve(wanted->first, wanted->second)) continue;
    give_back(wanted);
    ledger_.note_refusal();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = CUDA_SUCCESS;
  for (auto& [address, mapping] : mappings_) {
    result = create(&mapping.memory, mapping.size, properties_of(mapping.device), 0);
    if (result != CUDA_SUCCESS) break;
    result = fill(address, mapping);
    if (result == CUDA_SUCCESS) continue;
    api_.cuMemRelease(std::exchange(mapping.memory, 0));
    break;
  }
  if (result != CUDA_SUCCESS) {
    for (auto& [address, mapping] : mappings_) {
      if (mapping.memory == 0) continue;
      api_.cuMemUnmap(address, mapping.size);
      api_.cuMemRelease(std::exchange(mapping.memory, 0));
    }
    give_back(bytes.end());
    return result;
  }
  for (auto& [address, mapping] : mappings_) {
    release_host(mapping);
    mapping.moved = nullptr;
    ledger_.note_movable(mapping.device, static_cast<int64_t>(mapping.size));
  }
  moved_ = 0;
  checked_out_ = false;
  return CUDA_SUCCESS;
}

}  // namespace gpupool::worker
