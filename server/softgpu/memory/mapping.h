// What address_space.cc and mapping.cc tell each other. Internal to memory/.
#pragma once
#include <cstdint>

namespace gpupool::softgpu {

// True when [address, address + size) lies in allocated addresses.
bool addresses_allocated(uint64_t address, uint64_t size);
// True when some Memory is mapped within.
bool anything_mapped(uint64_t address, uint64_t size);
// free_addresses for addresses known to be free of mappings.
void release_addresses(uint64_t address, uint64_t size);
// Replaces what is there by fresh private pages, or by a reservation without memory.
bool back_with_fresh_pages(uint64_t address, uint64_t size, int protection, bool huge_pages);
bool back_with_nothing(uint64_t address, uint64_t size);

}  // namespace gpupool::softgpu
