// The interface between address_space.cc and mapping.cc. Internal to memory/.
#pragma once
#include <cstdint>

namespace gpupool::softgpu {

// Returns true if [address, address + size) lies in allocated addresses.
bool addresses_allocated(uint64_t address, uint64_t size);
// Returns true if any Memory is mapped within the range.
bool anything_mapped(uint64_t address, uint64_t size);
// As free_addresses, for addresses known to have no mappings.
void release_addresses(uint64_t address, uint64_t size);
// Replace the mapping of the range by fresh private pages, or by a reservation without memory.
bool map_fresh_pages(uint64_t address, uint64_t size, int protection, bool huge_pages);
bool map_inaccessible(uint64_t address, uint64_t size);

}  // namespace gpupool::softgpu
