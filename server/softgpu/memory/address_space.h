// softgpu's reserved range of virtual addresses, and the memory mapped into it. Used by exec/ and runtime/.
//
// There is one range per process, reserved at first use (PROT_NONE, no memory behind it). Everything a kernel
// may touch lies in it: device memory, pinned host memory, shared windows, fiber stacks, parameter blocks. A
// kernel access outside of it is a fault unless the address is registered host memory; inside of it, an
// access to an unmapped page raises SIGSEGV, which exec/ turns into a fault of the grid. Thread-safe. Nothing
// here throws, except std::bad_alloc for bookkeeping.
//
// While a Memory object is mapped at one address, its memory is private anonymous memory with huge pages,
// because the first touch of fresh memory is twice as fast there as in a memfd. Mapping only a part of it,
// mapping it at a second address or exporting it to another process moves the contents to a memfd.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "common/sanitizers.h"

namespace gpupool::softgpu {

// Chosen so that neither the kernel's default mmap placement nor the shadow memory of ASan or TSan uses it.
constexpr uint64_t kRangeBase = kThreadSanitized ? 64ull << 30 : 32ull << 40;
constexpr uint64_t kRangeSize = kThreadSanitized ? 256ull << 30 : 4ull << 40;
static_assert(!kThreadSanitized || kRangeBase + kRangeSize <= kThreadSanitizerEnd);
constexpr uint64_t kGranule =
    2ull << 20;  // bytes: granularity of VMM allocations and mappings, as on NVIDIA GPUs

// Reserves the range. Returns false if its addresses are in use (softgpu then offers no device). Idempotent.
bool reserve_range();

inline bool in_range(uint64_t address, uint64_t bytes) {
  return bytes <= kRangeSize && address - kRangeBase <= kRangeSize - bytes;
}

uint64_t page_bytes();  // page size of the host
inline uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// --- Virtual addresses (no memory behind them yet) ---
// size: bytes, rounded up to pages. alignment: a power of two; less than a page means a page. hint: a
// preferred address or 0; ignored unless aligned and free.
std::optional<uint64_t> allocate_addresses(uint64_t size, uint64_t alignment, uint64_t hint);
// Frees a range returned by allocate_addresses. Returns false without any effect if the range is not exactly
// one of those, or if part of it is still mapped.
bool free_addresses(uint64_t address, uint64_t size);

// --- Memory behind addresses ---
// A piece of memory that can be mapped at several addresses at once (cuMemCreate). Freed and uncharged when
// the last reference is dropped; every mapping holds a reference.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual uint64_t size() const = 0;  // bytes, as requested; the mappable size is rounded up to pages
};
// Creates zeroed memory that is not charged to a device; `released` runs when the last reference is dropped.
// Use SharedDevice::allocate() for device memory.
std::shared_ptr<Memory> create_memory(uint64_t size, std::function<void()> released);

// --- Memory of several processes ---
// Label stored in the memfd of exported memory. Another process could forge it; SharedDevice decides what to
// believe.
struct MemoryLabel {
  uint64_t magic = 0;
  uint64_t id = 0;            // random and not 0; identifies the memory in all processes
  uint64_t device = 0;        // SharedDevice::key()
  uint64_t size = 0;          // Memory::size()
  uint64_t handle_types = 0;  // CUmemAllocationHandleType, as requested
};
// Returns a descriptor that import_memory() accepts in another process; the caller closes it. -1: the host
// refused. The first export moves the memory to a memfd and stores the label; later ones ignore their label.
// *kept receives the memory's own descriptor, valid while the memory exists.
int export_memory(const std::shared_ptr<Memory>& memory, MemoryLabel label, int* kept = nullptr);
// Returns nullopt if the descriptor is not exported memory. The caller keeps ownership of the descriptor.
std::optional<MemoryLabel> read_label(int descriptor);
std::shared_ptr<Memory> import_memory(int descriptor, std::function<void()> released);

// Fills memory with garbage instead of zeros when it is first mapped, as on real devices, to test code that
// must clear it (SOFTGPU_DIRTY_MEMORY=1). Call before the first map_memory().
void make_memory_dirty();
bool memory_is_dirty();

enum class Access : uint8_t { none, read, read_write };

// offset, address and size are in bytes and multiples of the page size. The addresses must be allocated and
// not yet mapped. Returns false if that does not hold or the host refuses (out of mappings).
bool map_memory(const std::shared_ptr<Memory>& memory, uint64_t offset, uint64_t address, uint64_t size,
                Access access = Access::read_write);
// unmap_memory makes the range PROT_NONE again. Both return false unless the range consists of whole mappings
// without gaps.
bool unmap_memory(uint64_t address, uint64_t size);
bool protect_memory(uint64_t address, uint64_t size, bool readable, bool writable);
// Returns the memory mapped at `address` and the offset within it, or null if nothing is mapped there.
std::shared_ptr<Memory> memory_at(uint64_t address, uint64_t* offset);
// Returns true if every byte of [address, address + size) is mapped with at least this access.
bool is_accessible(uint64_t address, uint64_t size, Access access);

// For the SIGSEGV handler: returns true if the access failed only because the memory was being moved to a
// memfd, after waiting for the end of the move; the access can then be retried. Async-signal-safe.
bool wait_for_move(uint64_t address);

// Memory for the host side and the executor: pinned host memory, stacks, shared windows. Zeroed, not charged
// to a device. huge_pages: for large buffers that will be filled; not for stacks.
std::optional<uint64_t> allocate_host(uint64_t size, uint64_t alignment, bool huge_pages = false);
void free_host(uint64_t address, uint64_t size);
// Returns pages of allocate_host memory to the kernel; they read as zeros afterwards.
void discard_host(uint64_t address, uint64_t size);

// --- Registered host memory outside the range (cuMemHostRegister) ---
// Returns false if the range is empty, overlaps another registration, or touches the reserved range.
bool register_host(uint64_t address, uint64_t size, bool read_only);
bool unregister_host(uint64_t address);
bool is_registered_host(uint64_t address, uint64_t size, bool for_store);

}  // namespace gpupool::softgpu
