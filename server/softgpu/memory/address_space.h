// softgpu's reserved range of virtual addresses, and the memory mapped into it.
//
// One per process, reserved at the first use (PROT_NONE, no memory behind it). Everything a kernel can touch lies in it:
// device memory, pinned host memory, shared windows, fiber stacks, parameter blocks. A kernel's access outside is a fault
// (unless the address is registered host memory); inside, an access to a page that is not mapped raises SIGSEGV, which
// exec/ turns into a fault of the grid. Thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <memory>

namespace gpupool::softgpu {

// Chosen so that neither the kernel's default mmap placement, nor ASan's or TSan's shadow uses it.
#if defined(GPUPOOL_TSAN)
constexpr uint64_t kRangeBase = 0x10'0000'0000;   // TSan's low application range ends at 512 GiB
constexpr uint64_t kRangeSize = 0x40'0000'0000;   // 256 GiB
#else
constexpr uint64_t kRangeBase = 0x2000'0000'0000; // 32 TiB
constexpr uint64_t kRangeSize = 0x0400'0000'0000; // 4 TiB
#endif
constexpr uint64_t kGranule = 2ull << 20;  // bytes: granularity of VMM allocations and mappings, as on NVIDIA GPUs

// Reserves the range; false when it is taken (softgpu then offers no device). Idempotent.
bool reserve_range();

inline bool in_range(uint64_t address, uint64_t bytes) {
  return bytes <= kRangeSize && address - kRangeBase <= kRangeSize - bytes;
}

// --- Virtual addresses (no memory behind them yet) ---
// size and alignment in bytes, multiples of the page size; hint 0 or a wished address (honoured when free).
std::optional<uint64_t> allocate_addresses(uint64_t size, uint64_t alignment, uint64_t hint);
void free_addresses(uint64_t address, uint64_t size);

// --- Memory behind addresses ---
// A piece of memory that can be mapped at several addresses at once (cuMemCreate). Unmapped and uncharged when the last
// reference goes.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual uint64_t size() const = 0;
};
bool map_memory(const std::shared_ptr<Memory>& memory, uint64_t offset, uint64_t address, uint64_t size);
bool unmap_memory(uint64_t address, uint64_t size);                        // back to PROT_NONE
bool protect_memory(uint64_t address, uint64_t size, bool readable, bool writable);

// Memory for the host side and the executor: pinned host memory, stacks, windows. Zeroed, not charged to a device.
std::optional<uint64_t> allocate_host(uint64_t size, uint64_t alignment);
void free_host(uint64_t address, uint64_t size);

// --- Registered host memory outside the range (cuMemHostRegister) ---
bool register_host(uint64_t address, uint64_t size, bool read_only);
bool unregister_host(uint64_t address);
bool is_registered_host(uint64_t address, uint64_t size, bool for_store);

}  // namespace gpupool::softgpu
