#include "server/softgpu/memory/address_space.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "server/softgpu/memory/mapping.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace gpupool::softgpu {
namespace {

// The free ranges by address and by size. Best fit: allocates from the smallest free range that is large
// enough.
class AddressAllocator {
 public:
  std::optional<uint64_t> allocate(uint64_t size, uint64_t alignment, uint64_t hint) {
    std::lock_guard lock(mutex_);
    if (!ready_) {
      const uint64_t start = random_start();
      insert_free(kRangeBase, start - kRangeBase);
      // The gap prevents the two free ranges from being merged.
      insert_free(start + kGranule, kRangeBase + kRangeSize - start - kGranule);
      ready_ = true;
    }
    if (hint != 0 && hint % alignment == 0 && in_range(hint, size)) {
      auto piece = free_.upper_bound(hint);
      if (piece != free_.begin()) {
        --piece;
        if (hint + size <= piece->first + piece->second) return take(piece, hint, size);
      }
    }
    for (auto candidate = by_size_.lower_bound({size, 0}); candidate != by_size_.end(); ++candidate) {
      const auto [piece_size, piece_address] = *candidate;
      const uint64_t address = round_up(piece_address, alignment);
      if (address - piece_address <= piece_size - size) return take(free_.find(piece_address), address, size);
    }
    return std::nullopt;
  }

  bool release(uint64_t address, uint64_t size) {
    std::lock_guard lock(mutex_);
    auto used = used_.find(address);
    if (used == used_.end() || used->second != size) return false;
    used_.erase(used);
    auto next = free_.lower_bound(address);
    if (next != free_.end() && next->first == address + size) {
      size += next->second;
      next = erase_free(next);
    }
    if (next != free_.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == address) {
        address = previous->first;
        size += previous->second;
        erase_free(previous);
      }
    }
    insert_free(address, size);
    return true;
  }

  // Returns true if [address, address + size) lies in allocated addresses, of one or several allocations.
  bool covers(uint64_t address, uint64_t size) {
    std::lock_guard lock(mutex_);
    auto piece = used_.upper_bound(address);
    if (piece == used_.begin()) return false;
    for (--piece; piece != used_.end() && piece->first <= address; ++piece) {
      const uint64_t end = piece->first + piece->second;
      if (end <= address) return false;
      if (end - address >= size) return true;
      size -= end - address;
      address = end;
    }
    return false;
  }

 private:
  using Pieces = std::map<uint64_t, uint64_t>;

  uint64_t take(Pieces::iterator piece, uint64_t address, uint64_t size) {
    const auto [start, length] = *piece;
    erase_free(piece);
    if (address > start) insert_free(start, address - start);
    if (address + size < start + length) insert_free(address + size, start + length - address - size);
    used_.emplace(address, size);
    return address;
  }
  void insert_free(uint64_t address, uint64_t size) {
    free_.emplace(address, size);
    by_size_.emplace(size, address);
  }
  // Allocations start at a random address in the last eighth of the range, similar to ASLR, so that module
  // variables of several processes have different addresses. The free range behind that address is the
  // smaller one and is used first.
  static uint64_t random_start() {
    constexpr uint64_t kPlaces = kRangeSize / 16 / kGranule;
    uint64_t random = 0;
    (void)!::getrandom(&random, sizeof random, 0);
    return kRangeBase + kRangeSize - kRangeSize / 8 + random % kPlaces * kGranule;
  }
  Pieces::iterator erase_free(Pieces::iterator piece) {
    by_size_.erase({piece->second, piece->first});
    return free_.erase(piece);
  }

  std::mutex mutex_;
  bool ready_ = false;
  Pieces free_, used_;                               // address -> size
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // size, address of the free pieces
};

// Never destroyed: programs free device memory from exit handlers.
AddressAllocator& allocator() {
  static auto* instance = new AddressAllocator;
  return *instance;
}

}  // namespace

uint64_t page_bytes() {
  static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

bool reserve_range() {
  static const bool reserved = [] {
    void* wished = reinterpret_cast<void*>(kRangeBase);
    void* got = mmap(wished, kRangeSize, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == wished) {
      madvise(got, kRangeSize, MADV_DONTDUMP);  // keep the range out of core files
      return true;
    }
    if (got != MAP_FAILED) munmap(got, kRangeSize);  // kernels before 4.17 take the address as a hint
    return false;
  }();
  return reserved;
}

std::optional<uint64_t> allocate_addresses(uint64_t size, uint64_t alignment, uint64_t hint) {
  if (size == 0 || size > kRangeSize || (alignment & (alignment - 1)) != 0 || alignment > kRangeSize)
    return std::nullopt;
  if (!reserve_range()) return std::nullopt;
  return allocator().allocate(round_up(size, page_bytes()), std::max(alignment, page_bytes()), hint);
}

bool free_addresses(uint64_t address, uint64_t size) {
  if (size == 0 || size > kRangeSize) return false;
  size = round_up(size, page_bytes());
  if (anything_mapped(address, size)) return false;
  return allocator().release(address, size);
}

void release_addresses(uint64_t address, uint64_t size) {
  allocator().release(address, size);
}

bool addresses_allocated(uint64_t address, uint64_t size) {
  return allocator().covers(address, size);
}

bool map_fresh_pages(uint64_t address, uint64_t size, int protection, bool huge_pages) {
  void* wished = reinterpret_cast<void*>(address);
  if (mmap(wished, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
      wished)
    return false;
  if (huge_pages && size >= kGranule) madvise(wished, size, MADV_HUGEPAGE);
  return true;
}

bool map_inaccessible(uint64_t address, uint64_t size) {
  return map_fresh_pages(address, size, PROT_NONE, false);
}

std::optional<uint64_t> allocate_host(uint64_t size, uint64_t alignment, bool huge_pages) {
  if (huge_pages && size >= kGranule) alignment = std::max(alignment, kGranule);
  const auto address = allocate_addresses(size, alignment, 0);
  if (!address) return std::nullopt;
  if (!map_fresh_pages(*address, round_up(size, page_bytes()), PROT_READ | PROT_WRITE, huge_pages)) {
    free_addresses(*address, size);
    return std::nullopt;
  }
  return address;
}

void free_host(uint64_t address, uint64_t size) {
  if (!addresses_allocated(address, size)) return;
  map_inaccessible(address, round_up(size, page_bytes()));
  free_addresses(address, size);
}

void discard_host(uint64_t address, uint64_t size) {
  madvise(reinterpret_cast<void*>(address), round_up(size, page_bytes()), MADV_DONTNEED);
}

}  // namespace gpupool::softgpu
