// softgpu's reserved range of virtual addresses, and the memory mapped into it.
//
// One per process, reserved at the first use (PROT_NONE, no memory behind it). Everything a kernel can touch lies in it:
// device memory, pinned host memory, shared windows, fiber stacks, parameter blocks. A kernel's access outside is a fault
// (unless the address is registered host memory); inside, an access to a page that is not mapped raises SIGSEGV, which
// exec/ turns into a fault of the grid. Thread-safe. Nothing here throws, except std::bad_alloc when the host is out of
// memory for bookkeeping.
//
// The memory behind a Memory object is private anonymous memory with huge pages as long as it is mapped at one place:
// the first touch of fresh memory is twice as fast as that of a memfd. Mapping it at a second place, or for a second process, moves it
// to a memfd.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

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

uint64_t page_bytes();  // of the host
inline uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// --- Virtual addresses (no memory behind them yet) ---
// size in bytes, rounded up to pages; alignment a power of two (smaller than a page means a page); hint 0 or a wished
// address, honoured when it is aligned and free, else ignored.
std::optional<uint64_t> allocate_addresses(uint64_t size, uint64_t alignment, uint64_t hint);
// Exactly what allocate_addresses gave; false (nothing happens) when it was not that, or is still mapped somewhere.
bool free_addresses(uint64_t address, uint64_t size);

// --- Memory behind addresses ---
// A piece of memory that can be mapped at several addresses at once (cuMemCreate). Unmapped and uncharged when the last
// reference goes; every mapping is a reference.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual uint64_t size() const = 0;  // bytes, as asked for; what can be mapped is rounded up to pages
};
// Zeroed memory without a charge; `released` runs when the last reference goes. SharedDevice::allocate() is the usual way.
std::shared_ptr<Memory> create_memory(uint64_t size, std::function<void()> released);

// --- Memory of several processes ---
// What stands behind the memory in its file, for who gets the file: who may believe it is SharedDevice's business.
struct MemoryLabel {
  uint64_t magic = 0;
  uint64_t id = 0;            // random: of this memory, in whatever process; not 0
  uint64_t device = 0;        // SharedDevice::key()
  uint64_t size = 0;          // Memory::size()
  uint64_t handle_types = 0;  // CUmemAllocationHandleType, as asked for
};
// A descriptor of the memory, from which import_memory() makes it in another process; the caller's to close, -1: the host
// refuses. The first time decides about the label, and moves the memory to a file, whose descriptor is *kept as long as the memory
// is there.
int export_memory(const std::shared_ptr<Memory>& memory, MemoryLabel label, int* kept = nullptr);
// Null: it is no such descriptor. The descriptor stays the caller's.
std::optional<MemoryLabel> read_label(int descriptor);
std::shared_ptr<Memory> import_memory(int descriptor, std::function<void()> released);

// Memory is full of other things instead of zeroes when it is mapped for the first time, as other devices' is: for tests of
// those who clear it (SOFTGPU_DIRTY_MEMORY=1). Before the first map_memory().
void make_memory_dirty();
bool memory_is_dirty();

enum class Access : uint8_t { none, read, read_write };

// offset, address and size in bytes, multiples of the page size. The addresses must be allocated and not mapped yet.
// False: not so, or the host refuses (out of mappings).
bool map_memory(const std::shared_ptr<Memory>& memory, uint64_t offset, uint64_t address, uint64_t size,
                Access access = Access::read_write);
// Back to PROT_NONE. Both take a range that consists of whole mappings without gaps, else they return false.
bool unmap_memory(uint64_t address, uint64_t size);
bool protect_memory(uint64_t address, uint64_t size, bool readable, bool writable);
// The memory mapped at `address` and the offset within it; null when nothing is.
std::shared_ptr<Memory> memory_at(uint64_t address, uint64_t* offset);
// True when every byte of [address, address + size) is mapped with at least this access.
bool is_accessible(uint64_t address, uint64_t size, Access access);

// For the SIGSEGV handler: true when the access failed only because the memory there was just being moved (see above) and
// may be tried again; waits until the move is over. Async-signal-safe.
bool wait_for_move(uint64_t address);

// Memory for the host side and the executor: pinned host memory, stacks, windows. Zeroed, not charged to a device.
// huge_pages: for large buffers that will be filled; not for stacks.
std::optional<uint64_t> allocate_host(uint64_t size, uint64_t alignment, bool huge_pages = false);
void free_host(uint64_t address, uint64_t size);
// Gives the pages of allocate_host memory back to the kernel; they read as zeros afterwards.
void discard_host(uint64_t address, uint64_t size);

// --- Registered host memory outside the range (cuMemHostRegister) ---
// False: empty, overlapping another registration, or touching the reserved range.
bool register_host(uint64_t address, uint64_t size, bool read_only);
bool unregister_host(uint64_t address);
bool is_registered_host(uint64_t address, uint64_t size, bool for_store);

}  // namespace gpupool::softgpu
