#include "client/memory/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "client/memory/host_pages.h"
#include "client/memory/mirrors.h"
#include "client/session/session.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"

namespace gpupool::client {
namespace {

uint64_t round_to_pages(uint64_t bytes) {
  static const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// Returns the number that follows `name` in a file of /proc or /sys. No file or no number ("max"): no limit.
uint64_t number_in(const std::string& file, const char* name) {
  uint64_t value = UINT64_MAX;
  std::FILE* const text = std::fopen(file.c_str(), "re");
  if (!text) return value;
  char line[128];
  while (std::fgets(line, sizeof line, text)) {
    const size_t length = std::strlen(name);
    if (std::strncmp(line, name, length) != 0) continue;
    char* end = nullptr;
    const uint64_t number = std::strtoull(line + length, &end, 10);
    if (end == line + length) continue;
    value = number;
    break;
  }
  static_cast<void>(std::fclose(text));
  return value;
}

// Memory left in the control groups that this process is in (container, service), including their ancestors.
uint64_t left_to_groups() {
  uint64_t left = UINT64_MAX;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    const size_t at = line.find(":/");
    const bool second = line.starts_with("0::");  // cgroup v2, which has all controllers
    if (at == std::string::npos || !(second || line.substr(0, at).ends_with(":memory"))) continue;
    const std::string root = second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const char* const limit_file = second ? "/memory.max" : "/memory.limit_in_bytes";
    const char* const usage_file = second ? "/memory.current" : "/memory.usage_in_bytes";
    for (std::string path = line.substr(at + 1); true; path.resize(path.rfind('/'))) {
      const uint64_t limit = number_in(root + path + limit_file, ""),
                     usage = number_in(root + path + usage_file, "");
      if (limit != UINT64_MAX && usage != UINT64_MAX)
        left = std::min(left, limit > usage ? limit - usage : 0);
      if (path.empty()) break;
    }
  }
  return left;
}

// True if half of the memory left on the machine and in the control groups suffices, and shared memory stays
// below a quarter of RAM. Memory that is populated at once must not exhaust what the rest of the machine
// needs; larger requests become ordinary memory, populated on use.
bool fits_in_memory(uint64_t bytes, uint64_t shared_already) {
  static const uint64_t most =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) / 4 * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > most || shared_already > most - bytes) return false;
  uint64_t free = number_in("/proc/meminfo", "MemAvailable:");
  if (free != UINT64_MAX) free *= 1024;
  return bytes <= std::min(free, left_to_groups()) / 2;
}

// Populates the file, as pinned memory is resident from the start. Checks again from time to time whether
// enough memory is left, since other programs may be allocating too. Works in small parts, because a signal
// makes fallocate() fail.
bool fill(int file, uint64_t size, uint64_t shared_already) {
  constexpr uint64_t kPart = 4u << 20, kLookEvery = 16 * kPart;
  constexpr int kTries = 10;
  int tries = 0;
  for (uint64_t done = 0; done < size;) {
    if (done % kLookEvery == 0 && !fits_in_memory(size - done, shared_already + done)) return false;
    const uint64_t part = std::min(kPart, size - done);
    if (fallocate(file, 0, static_cast<off_t>(done), static_cast<off_t>(part)) == 0) {
      done += part;
      tries = 0;
    } else if (errno != EINTR || ++tries == kTries) {
      return false;
    }
  }
  return true;
}

uint64_t bits(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

// Chooses an address for shared pinned memory that is probably free in the worker too, so that kernels find
// it at the same address: away from both sides' libraries and heaps, and spread by process id to avoid those
// of other programs.
void* likely_place(uint64_t size) {
  static std::atomic<uint64_t> next{0x6000'0000'0000ull + (static_cast<uint64_t>(getpid()) % 4096 << 32)};
  return host_pointer(next.fetch_add(size, std::memory_order_relaxed));
}

// Unmaps the memory on the server. Returns the command's sequence number; 0: a reset has already unmapped it.
uint64_t unmap_on_server(const HostAllocation& gone) {
  auto* const context = handles().find_as<Context>(Kind::context, gone.context);
  if (!context || context->epoch.load() != gone.epoch) return 0;
  const uint64_t granularity = gone.home->addresses().granularity();
  const uint64_t size = (gone.size + granularity - 1) / granularity * granularity;
  uint64_t sequence = 0;
  (void)gone.home->post(wire::Command::free_memory, context,
                        wire::FreeMemory{gone.address, size, wire::kAllStreams}, &sequence);
  return sequence;
}

}  // namespace

HostMemory& host_memory() {
  static HostMemory* const only = new HostMemory;  // never destroyed: programs free memory in exit handlers
  return *only;
}

void* HostMemory::allocate(uint64_t bytes, unsigned flags, Context& context) {
  const uint64_t size = round_to_pages(bytes);
  if (size < bytes) return nullptr;
  // Allocates anywhere, then moves the memory to an address that a kernel can also be given; if there is none
  // left, it stays. Not MAP_FIXED at once: kernels before 6.12 that refuse the memory have already removed
  // the reservation, and another mapping of the program could take the addresses.
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  AddressSpace& addresses = context.session->addresses();
  auto place = addresses.reserve_host(size);
  if (place &&
      mremap(memory, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, host_pointer(*place)) == MAP_FAILED) {
    addresses.unreserve_host(*place, 0);
    place.reset();
  }
  if (place) memory = host_pointer(*place);
  std::lock_guard lock(mutex_);
  HostAllocation& allocation =
      allocations_[bits(memory)] = {bits(memory), bytes, flags, false, context.handle, next_id_++};
  allocation.epoch = context.epoch.load();
  if (place) {
    allocation.home = context.session;
    allocation.device = *place;
  }
  return memory;
}

CUresult HostMemory::reach(uint64_t address, Context& context) {
  const auto known = find(address);
  if (!known || known->reached || !known->home) return CUDA_SUCCESS;
  if (known->home != context.session) return CUDA_ERROR_NOT_SUPPORTED;  // another server's kernel
  const std::lock_guard reaching(reaching_);
  {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(known->address);
    if (found == allocations_.end() || found->second.reached) return CUDA_SUCCESS;
    found->second.epoch = context.epoch.load();
  }
  const uint64_t granularity = known->home->addresses().granularity();
  const uint64_t size = (known->size + granularity - 1) / granularity * granularity;
  wire::Buffer reply;
  const wire::MapMemory body{known->address, size, context.device->server_ordinal, 0};
  if (const CUresult result = known->home->call(wire::Command::map_memory, &context, body, reply);
      reply.size() != sizeof body.address) {
    return result == CUDA_SUCCESS ? Session::failure() : result;
  }
  if (const CUresult result = mirrors().add_pinned(*known->home, context, known->address, known->size);
      result != CUDA_SUCCESS)
    return result;
  const std::lock_guard lock(mutex_);
  if (const auto found = allocations_.find(known->address); found != allocations_.end()) {
    found->second.reached = true;
    found->second.context = context.handle;
  }
  return CUDA_SUCCESS;
}

void* HostMemory::allocate_shared(uint64_t bytes, unsigned flags, Context& context, CUresult* result) {
  const uint64_t size = round_to_pages(bytes);
  const uint64_t shared_already = shared_bytes_.load(std::memory_order_relaxed);
  if (size < bytes || !HostPages::may_have_file(size) || !fits_in_memory(size, shared_already))
    return nullptr;
  const int file = memfd_create("gpupool-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(size)) == 0 &&
      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0 && fill(file, size, shared_already)) {
    memory = mmap(likely_place(size), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  }
  if (memory == MAP_FAILED) {
    close(file);
    return nullptr;
  }
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    id = next_id_++;
  }
  const uint32_t epoch = context.epoch.load();
  bool taken = false;
  uint64_t device = 0;
  *result = context.session->share_host_memory(context, file, {id, size, bits(memory)}, &taken, &device);
  close(file);
  if (!taken || *result != CUDA_SUCCESS) {
    if (taken)
      context.session->post(wire::Command::release_host_memory, nullptr, wire::ReleaseHostMemory{id});
    else
      *result = CUDA_SUCCESS;  // memory that is not shared is used instead
    munmap(memory, size);
    return nullptr;
  }
  std::lock_guard lock(mutex_);
  HostAllocation& allocation =
      allocations_[bits(memory)] = {bits(memory), bytes, flags, false, context.handle, id};
  shared_bytes_.fetch_add(size, std::memory_order_relaxed);
  allocation.shared_with = context.session;
  allocation.device = device;
  allocation.epoch = epoch;
  return memory;
}

bool HostMemory::free(void* address) {
  HostAllocation gone;
  {
    std::lock_guard lock(mutex_);
    const auto found = allocations_.find(bits(address));
    if (found == allocations_.end() || found->second.registered) return false;
    gone = found->second;
    if (gone.shared_with) shared_bytes_.fetch_sub(round_to_pages(gone.size), std::memory_order_relaxed);
    allocations_.erase(found);
  }
  const uint64_t size = round_to_pages(gone.size);
  if (gone.home) {
    mirrors().remove(gone.address);
    (void)mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    gone.home->addresses().unreserve_host(gone.address, gone.reached ? unmap_on_server(gone) : 0);
  } else {
    munmap(address, size);
  }
  if (gone.shared_with)
    gone.shared_with->post(wire::Command::release_host_memory, nullptr, wire::ReleaseHostMemory{gone.id});
  return true;
}

std::optional<HostAllocation> HostMemory::use_shared(const void* address, uint64_t bytes,
                                                     const Context& context, bool write, bool wait) {
  std::lock_guard lock(mutex_);
  auto found = allocations_.upper_bound(bits(address));
  if (found == allocations_.begin()) return std::nullopt;
  HostAllocation& allocation = (--found)->second;
  const uint64_t offset = bits(address) - allocation.address;
  if (offset > allocation.size || bytes > allocation.size - offset) return std::nullopt;
  if (allocation.context != context.handle || allocation.shared_with != context.session ||
      allocation.epoch != context.epoch.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  if (!wait) allocation.used = true;
  if (!wait && write) allocation.written = true;
  return allocation;
}

bool HostMemory::is_written(const void* address) const {
  const auto found = find(bits(address));
  return found && found->written;
}

bool HostMemory::add_registered(void* address, uint64_t bytes, unsigned flags, uint64_t context) {
  std::lock_guard lock(mutex_);
  const uint64_t begin = bits(address);
  const auto next = allocations_.upper_bound(begin);
  if (next != allocations_.end() && next->first < begin + bytes) return false;
  if (next != allocations_.begin()) {
    const auto& before = std::prev(next)->second;
    if (before.address + before.size > begin) return false;
  }
  allocations_[begin] = {begin, bytes, flags, true, context, next_id_++};
  return true;
}

bool HostMemory::remove_registered(void* address) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(bits(address));
  if (found == allocations_.end() || !found->second.registered) return false;
  allocations_.erase(found);
  return true;
}

void HostMemory::set_device(uint64_t address, uint64_t device) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found != allocations_.end()) found->second.device = device;
}

std::optional<HostAllocation> HostMemory::find(uint64_t address) const {
  std::lock_guard lock(mutex_);
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return std::nullopt;
  --found;
  if (address - found->first >= found->second.size) return std::nullopt;
  return found->second;
}

std::optional<HostAllocation> HostMemory::holding(const void* address, uint64_t bytes) const {
  auto found = find(bits(address));
  if (found && bytes > found->size - (bits(address) - found->address)) found.reset();
  return found;
}

}  // namespace gpupool::client
