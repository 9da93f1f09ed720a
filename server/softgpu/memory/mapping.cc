// Memory objects and the table of their mappings.
#include "server/softgpu/memory/mapping.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

int protection_of(Access access) {
  switch (access) {
    case Access::none: return PROT_NONE;
    case Access::read: return PROT_READ;
    case Access::read_write: return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

std::atomic<bool> dirty{false};
constexpr unsigned char kDirtyByte = 0xdb;

// Fills the memory mapped at `address`; `access` is its protection before and afterwards.
void make_dirty(uint64_t address, uint64_t size, Access access) {
  void* const start = reinterpret_cast<void*>(address);
  if (mprotect(start, size, PROT_READ | PROT_WRITE) == 0) std::memset(start, kDirtyByte, size);
  mprotect(start, size, protection_of(access));
}

constexpr uint64_t kLabel = 0x4d45'4d4f'5259'5301;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;  // prevents truncation under a mapping

bool page_multiple(uint64_t value) {
  return value % page_bytes() == 0;
}

// The current move of a Memory to a memfd and the number of moves that have ended, for the SIGSEGV handler.
std::atomic<uint64_t> moving_begin{0}, moving_end{0}, moves_done{0};
std::atomic<bool> moving{false};

class MappedMemory final : public Memory {
 public:
  MappedMemory(uint64_t size, std::function<void()> released) : size_(size), released_(std::move(released)) {}
  // Memory exported by another process; takes ownership of the descriptor.
  MappedMemory(uint64_t size, std::function<void()> released, int file)
      : size_(size), released_(std::move(released)), state_(State::shared), file_(file) {}
  ~MappedMemory() override;
  uint64_t size() const override { return size_; }
  uint64_t mapped_size() const { return round_up(size_, page_bytes()); }

  // These must be called with the table's mutex held.
  bool map_at(uint64_t offset, uint64_t address, uint64_t size, Access access);
  bool unmap_at(uint64_t address, uint64_t size, bool last_reference);
  bool label(MemoryLabel label);
  int file() const { return file_; }

 private:
  // fresh: no content. at_home: private pages mapped at one address. parked: private pages not mapped for
  // kernels. shared: in a memfd.
  enum class State { fresh, at_home, parked, shared };
  bool move_to_file();

  const uint64_t size_;
  std::function<void()> released_;
  State state_ = State::fresh;
  uint64_t home_ = 0;                  // at_home, parked: address of the private pages
  Access home_access_ = Access::none;  // at_home
  int file_ = -1;                      // shared
  friend struct Table;
};

struct Mapping {
  uint64_t size;
  uint64_t offset;
  Access access;
  std::shared_ptr<MappedMemory> memory;
};

struct Table {
  std::mutex mutex;
  std::map<uint64_t, Mapping> mappings;  // by address

  using Iterator = std::map<uint64_t, Mapping>::iterator;
  bool overlaps(uint64_t address, uint64_t size) {
    auto next = mappings.lower_bound(address);
    if (next != mappings.end() && next->first < address + size) return true;
    if (next == mappings.begin()) return false;
    --next;
    return next->first + next->second.size > address;
  }
  // Finds the mappings that make up exactly this range. Returns false if the range cuts a mapping or has a
  // gap.
  bool find_exact_mappings(uint64_t address, uint64_t size, Iterator* first, Iterator* end) {
    Iterator at = mappings.find(address);
    *first = at;
    uint64_t covered = 0;
    while (covered < size) {
      if (at == mappings.end() || at->first != address + covered) return false;
      covered += at->second.size;
      ++at;
    }
    *end = at;
    return covered == size;
  }
  static void set_home_access(MappedMemory& memory, Access access) { memory.home_access_ = access; }
};

Table& table() {
  static auto* instance = new Table;
  return *instance;
}

// Moves private pages to another address without copying; `from` becomes a reservation again.
bool move_pages(uint64_t from, uint64_t to, uint64_t size) {
  void* source = reinterpret_cast<void*>(from);
  if (mprotect(source, size, PROT_READ | PROT_WRITE) != 0) return false;
  void* moved = MAP_FAILED;
#ifdef MREMAP_DONTUNMAP
  moved = mremap(source, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
                 reinterpret_cast<void*>(to));
#endif
  if (moved == MAP_FAILED) {
    moved = mremap(source, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(to));
  }
  if (moved == MAP_FAILED) return false;
  map_inaccessible(from, size);
  return true;
}

bool write_file(int file, const char* bytes, uint64_t size, uint64_t offset) {
  while (size > 0) {
    const ssize_t wrote = pwrite(file, bytes, size, static_cast<off_t>(offset));
    if (wrote <= 0) return false;
    bytes += wrote;
    size -= static_cast<uint64_t>(wrote);
    offset += static_cast<uint64_t>(wrote);
  }
  return true;
}

// Kernels may read the pages during the copy; mprotect keeps writers out.
__attribute__((no_sanitize("thread"))) bool all_zero(const char* bytes, uint64_t size) {
  const auto* words = reinterpret_cast<const uint64_t*>(bytes);
  for (uint64_t i = 0; i < size / sizeof(uint64_t); ++i) {
    if (words[i] != 0) return false;
  }
  return true;
}

MappedMemory::~MappedMemory() {
  if (state_ == State::parked) {
    map_inaccessible(home_, mapped_size());
    release_addresses(home_, mapped_size());
  }
  if (file_ >= 0) close(file_);
  if (released_) released_();
}

bool MappedMemory::move_to_file() {
  if (state_ == State::shared) return true;
  const uint64_t size = mapped_size();
  const int file = memfd_create("softgpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return false;
  if (ftruncate(file, static_cast<off_t>(size + page_bytes())) != 0) {  // one more page for the label
    close(file);
    return false;
  }
  if (state_ == State::fresh && dirty) {
    void* const start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (start != MAP_FAILED) {
      std::memset(start, kDirtyByte, size);
      munmap(start, size);
    }
  }
  if (state_ != State::fresh) {
    void* home = reinterpret_cast<void*>(home_);
    moving_begin = home_;
    moving_end = home_ + size;
    moving = true;
    bool ok = mprotect(home, size, PROT_READ) == 0;
    const uint64_t page = page_bytes();
    for (uint64_t at = 0; ok && at < size; at += page) {
      const char* bytes = reinterpret_cast<const char*>(home_ + at);
      if (!all_zero(bytes, page)) ok = write_file(file, bytes, page, at);
    }
    const int protection = state_ == State::at_home ? protection_of(home_access_) : PROT_NONE;
    // The raw system call: for ThreadSanitizer mmap() writes the range, but for readers the bytes stay the
    // same. Its offset has 64 bits, of which a variadic int would leave half undefined.
    if (ok && state_ == State::at_home)
      ok = syscall(SYS_mmap, home, size, protection, MAP_SHARED | MAP_FIXED, file, off_t{0}) ==
           static_cast<long>(home_);
    if (!ok) mprotect(home, size, protection);
    moves_done.fetch_add(1);
    moving = false;
    if (!ok) {
      close(file);
      return false;
    }
    if (state_ == State::parked) {
      map_inaccessible(home_, size);
      release_addresses(home_, size);
    }
  }
  file_ = file;
  state_ = State::shared;
  return true;
}

bool MappedMemory::label(MemoryLabel label) {
  if (!move_to_file()) return false;
  if (read_label(file_)) return true;
  label.magic = kLabel;
  label.size = size_;
  while (label.id == 0) {
    if (getrandom(&label.id, sizeof label.id, 0) != sizeof label.id) return false;
  }
  return write_file(file_, reinterpret_cast<const char*>(&label), sizeof label, mapped_size()) &&
         fcntl(file_, F_ADD_SEALS, kSeals) == 0;
}

bool MappedMemory::map_at(uint64_t offset, uint64_t address, uint64_t size, Access access) {
  const bool whole = offset == 0 && size == mapped_size();
  if (whole && state_ == State::fresh) {
    if (!map_fresh_pages(address, size, protection_of(access), true)) return false;
    // Keep fork() from making every page copy-on-write.
    madvise(reinterpret_cast<void*>(address), size, MADV_DONTFORK);
    if (dirty) make_dirty(address, size, access);
  } else if (whole && state_ == State::parked && move_pages(home_, address, size)) {
    release_addresses(home_, size);
    mprotect(reinterpret_cast<void*>(address), size, protection_of(access));
  } else {
    if (!move_to_file()) return false;
    void* wished = reinterpret_cast<void*>(address);
    return mmap(wished, size, protection_of(access), MAP_SHARED | MAP_FIXED, file_,
                static_cast<off_t>(offset)) == wished;
  }
  state_ = State::at_home;
  home_ = address;
  home_access_ = access;
  return true;
}

bool MappedMemory::unmap_at(uint64_t address, uint64_t size, bool last_reference) {
  if (state_ == State::shared) return map_inaccessible(address, size);
  if (last_reference) {
    state_ = State::fresh;
    return map_inaccessible(address, size);
  }
  // The content outlives the mapping, so park the pages elsewhere.
  const auto parking = allocate_addresses(size, std::min(size & -size, kGranule), 0);
  if (parking && move_pages(address, *parking, size)) {
    mprotect(reinterpret_cast<void*>(*parking), size, PROT_NONE);
    home_ = *parking;
    state_ = State::parked;
    return true;
  }
  if (parking) release_addresses(*parking, size);
  return move_to_file() && map_inaccessible(address, size);
}

}  // namespace

void make_memory_dirty() {
  dirty = true;
}
bool memory_is_dirty() {
  return dirty;
}

std::shared_ptr<Memory> create_memory(uint64_t size, std::function<void()> released) {
  if (size == 0 || size > kRangeSize || !reserve_range()) return nullptr;
  return std::make_shared<MappedMemory>(size, std::move(released));
}

int export_memory(const std::shared_ptr<Memory>& memory, MemoryLabel label, int* kept) {
  const auto mapped = std::dynamic_pointer_cast<MappedMemory>(memory);
  if (!mapped) return -1;
  std::lock_guard lock(table().mutex);
  if (!mapped->label(label)) return -1;
  if (kept != nullptr) *kept = mapped->file();
  return fcntl(mapped->file(), F_DUPFD_CLOEXEC, 0);
}

std::optional<MemoryLabel> read_label(int descriptor) {
  struct stat info {};
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size < static_cast<off_t>(page_bytes()))
    return std::nullopt;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return std::nullopt;
  MemoryLabel label;
  const auto size = static_cast<uint64_t>(info.st_size) - page_bytes();
  if (pread(descriptor, &label, sizeof label, static_cast<off_t>(size)) != sizeof label) return std::nullopt;
  const bool good = label.magic == kLabel && label.id != 0 && label.size != 0 && label.size <= size &&
                    round_up(label.size, page_bytes()) == size;
  return good ? std::optional(label) : std::nullopt;
}

std::shared_ptr<Memory> import_memory(int descriptor, std::function<void()> released) {
  const auto label = read_label(descriptor);
  if (!label || label->size > kRangeSize || !reserve_range()) return nullptr;
  const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return own < 0 ? nullptr : std::make_shared<MappedMemory>(label->size, std::move(released), own);
}

bool map_memory(const std::shared_ptr<Memory>& memory, uint64_t offset, uint64_t address, uint64_t size,
                Access access) {
  auto mapped = std::dynamic_pointer_cast<MappedMemory>(memory);
  if (!mapped || size == 0 || !page_multiple(offset) || !page_multiple(address) || !page_multiple(size))
    return false;
  if (offset > mapped->mapped_size() || size > mapped->mapped_size() - offset || !in_range(address, size))
    return false;
  if (!addresses_allocated(address, size)) return false;
  auto& t = table();
  std::lock_guard lock(t.mutex);
  if (t.overlaps(address, size)) return false;
  if (!mapped->map_at(offset, address, size, access)) return false;
  t.mappings.emplace(address, Mapping{size, offset, access, std::move(mapped)});
  return true;
}

bool unmap_memory(uint64_t address, uint64_t size) {
  auto& t = table();
  // Destroyed after the mutex is released, because dropping the last reference runs `released`.
  std::map<uint64_t, Mapping> gone;
  std::lock_guard lock(t.mutex);
  Table::Iterator at, end;
  if (size == 0 || !t.find_exact_mappings(address, size, &at, &end)) return false;
  while (at != end) {
    auto& mapping = at->second;
    if (!mapping.memory->unmap_at(at->first, mapping.size, mapping.memory.use_count() == 1)) return false;
    gone.insert(t.mappings.extract(at++));
  }
  return true;
}

bool protect_memory(uint64_t address, uint64_t size, bool readable, bool writable) {
  const Access access = writable ? Access::read_write : readable ? Access::read : Access::none;
  auto& t = table();
  std::lock_guard lock(t.mutex);
  Table::Iterator first, end;
  if (size == 0 || !t.find_exact_mappings(address, size, &first, &end)) return false;
  if (mprotect(reinterpret_cast<void*>(address), size, protection_of(access)) != 0) return false;
  for (auto at = first; at != end; ++at) {
    at->second.access = access;
    Table::set_home_access(*at->second.memory, access);
  }
  return true;
}

std::shared_ptr<Memory> memory_at(uint64_t address, uint64_t* offset) {
  auto& t = table();
  std::lock_guard lock(t.mutex);
  auto at = t.mappings.upper_bound(address);
  if (at == t.mappings.begin()) return nullptr;
  --at;
  if (address - at->first >= at->second.size) return nullptr;
  if (offset != nullptr) *offset = at->second.offset + (address - at->first);
  return at->second.memory;
}

bool is_accessible(uint64_t address, uint64_t size, Access access) {
  auto& t = table();
  std::lock_guard lock(t.mutex);
  auto at = t.mappings.upper_bound(address);
  if (at == t.mappings.begin()) return false;
  for (--at; at != t.mappings.end() && at->first <= address; ++at) {
    const uint64_t end = at->first + at->second.size;
    if (end <= address || at->second.access < access) return false;
    if (end - address >= size) return true;
    size -= end - address;
    address = end;
  }
  return false;
}

bool anything_mapped(uint64_t address, uint64_t size) {
  auto& t = table();
  std::lock_guard lock(t.mutex);
  return t.overlaps(address, size);
}

bool wait_for_move(uint64_t address) {
  // Each thread's value of moves_done at its last retry. Initial-exec: a signal handler must not allocate
  // thread-local storage.
  __attribute__((tls_model("initial-exec"))) static thread_local uint64_t retried_moves = 0;
  if (moving && address >= moving_begin && address < moving_end) {
    while (moving) sched_yield();
    return true;
  }
  // The move that caused the fault may be over, and other moves after it, so retry once whenever a move has
  // ended since this thread's last retry. An access that failed for another reason fails again.
  const uint64_t done = moves_done;
  if (retried_moves == done) return false;
  retried_moves = done;
  return true;
}

}  // namespace gpupool::softgpu
