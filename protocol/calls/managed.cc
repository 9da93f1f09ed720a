#include "protocol/calls/managed.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace gpupool::cuda {
namespace {

constexpr uint64_t kPage = 4096;

int id_of(const ManagedLocation& place) {
  return place.type == ManagedLocation::kNone ? CU_DEVICE_INVALID : place.id;
}

// Advice and prefetches apply to whole pages of the range.
uint64_t page_of(uint64_t address) {
  return address / kPage * kPage;
}
uint64_t end_page_of(uint64_t address, uint64_t bytes) {
  return page_of(address + bytes + kPage - 1);
}

}  // namespace

CUresult check_location(const ManagedLocation& place, int devices) {
  switch (place.type) {
    case ManagedLocation::kDevice:
      return place.id >= 0 && place.id < devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case ManagedLocation::kHost:
    case ManagedLocation::kNearHostNode: return CUDA_SUCCESS;
    case ManagedLocation::kHostNode: return place.id >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

void ManagedAdvice::split(uint64_t at) {
  auto found = ranges_.upper_bound(at);
  if (found == ranges_.begin()) return;
  --found;
  if (found->first == at || at >= found->second.end) return;
  const Range rest = found->second;
  found->second.end = at;
  ranges_[at] = rest;
}

template <class Change>
void ManagedAdvice::change(uint64_t address, uint64_t bytes, Change&& change_facts) {
  const uint64_t end = end_page_of(address, bytes);
  uint64_t at = page_of(address);
  split(at);
  split(end);
  while (at < end) {
    const auto next = ranges_.lower_bound(at);
    if (next == ranges_.end() || next->first != at) {
      ranges_[at] = {std::min(end, next == ranges_.end() ? end : next->first), {}};
      continue;
    }
    change_facts(next->second.facts);
    at = next->second.end;
  }
}

CUresult ManagedAdvice::advise(uint64_t address, uint64_t bytes, CUmem_advise advice, ManagedLocation place,
                               int devices) {
  const bool placed = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                      advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (placed && check_location(place, devices) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  const bool known_type =
      place.type >= ManagedLocation::kNone && place.type <= ManagedLocation::kNearHostNode;
  if (advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION && !known_type) return CUDA_ERROR_INVALID_VALUE;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      change(address, bytes,
             [&](Facts& facts) { facts.read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      change(address, bytes, [&](Facts& facts) { facts.preferred = placed ? place : ManagedLocation{}; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      if (place.type != ManagedLocation::kDevice && place.type != ManagedLocation::kHost)
        return CUDA_ERROR_INVALID_VALUE;
      change(address, bytes, [&](Facts& facts) {
        if (advice == CU_MEM_ADVISE_SET_ACCESSED_BY)
          facts.accessed_by.insert(place.as_device());
        else
          facts.accessed_by.erase(place.as_device());
      });
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

void ManagedAdvice::prefetched(uint64_t address, uint64_t bytes, const ManagedLocation& place) {
  change(address, bytes, [&](Facts& facts) { facts.prefetched = place; });
}

void ManagedAdvice::forget(uint64_t address, uint64_t bytes) {
  const uint64_t begin = page_of(address), end = end_page_of(address, bytes);
  split(begin);
  split(end);
  ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
}

CUresult ManagedAdvice::get(void* data, size_t size, CUmem_range_attribute attribute, uint64_t address,
                            uint64_t bytes) const {
  if (!data || size == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  // All pages must agree.
  const Facts none;
  bool read_mostly = true, same_preferred = true, same_prefetched = true;
  std::vector<int> accessed_by;
  const Facts* first = nullptr;
  const uint64_t end = end_page_of(address, bytes);
  for (uint64_t at = page_of(address); at < end;) {
    auto found = ranges_.upper_bound(at);
    const Facts* facts = &none;
    uint64_t next = found == ranges_.end() ? end : found->first;
    if (found != ranges_.begin() && at < std::prev(found)->second.end) {
      facts = &std::prev(found)->second.facts;
      next = std::prev(found)->second.end;
    }
    if (!first) {
      first = facts;
      accessed_by.assign(facts->accessed_by.begin(), facts->accessed_by.end());
    }
    read_mostly = read_mostly && facts->read_mostly;
    same_preferred = same_preferred && facts->preferred == first->preferred;
    same_prefetched = same_prefetched && facts->prefetched == first->prefetched;
    std::erase_if(accessed_by, [&](int device) { return !facts->accessed_by.contains(device); });
    at = next;
  }
  if (!first) return CUDA_ERROR_INVALID_VALUE;  // address + bytes is beyond the end of the address space
  const ManagedLocation preferred = same_preferred ? first->preferred : ManagedLocation{};
  const ManagedLocation prefetched = same_prefetched ? first->prefetched : ManagedLocation{};
  const auto give = [&](int value) {
    if (size != sizeof value) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  switch (static_cast<int>(attribute)) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: return give(read_mostly ? 1 : 0);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: return give(preferred.as_device());
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: return give(prefetched.as_device());
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      if (size % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
      std::vector<int> devices(size / sizeof(int), CU_DEVICE_INVALID);
      // The host, which has the number -1, is the last.
      std::stable_partition(accessed_by.begin(), accessed_by.end(), [](int device) { return device >= 0; });
      std::copy_n(accessed_by.begin(), std::min(devices.size(), accessed_by.size()), devices.begin());
      std::memcpy(data, devices.data(), size);
      return CUDA_SUCCESS;
    }
    case 5:  // CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE and the ones after it: CUDA 12.2
      return give(preferred.type);
    case 6: return give(id_of(preferred));
    case 7: return give(prefetched.type);
    case 8: return give(id_of(prefetched));
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult check_batch(const void* addresses, const void* sizes, size_t count, unsigned long long flags,
                     CUstream stream) {
  if (!addresses || !sizes || count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return stream == nullptr || stream == CU_STREAM_LEGACY ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult check_batch_locations(const size_t* firsts, const void* places, size_t places_count, size_t count) {
  if (!firsts || !places || places_count == 0 || places_count > count || firsts[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 1; i < places_count; ++i) {
    if (firsts[i] <= firsts[i - 1] || firsts[i] >= count) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace gpupool::cuda
