#include "client/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "client/session.h"

namespace gpupool::client {
namespace {

uint64_t round_to_pages(uint64_t bytes) {
  static const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// The number behind `name` in a file of the kernel's; what is not there, or no number ("max"), sets no limit.
uint64_t number_in(const char* file, const char* name) {
  uint64_t value = UINT64_MAX;
  std::FILE* const text = std::fopen(file, "re");
  if (!text) return value;
  char line[128];
  while (std::fgets(line, sizeof line, text)) {
    const size_t length = std::strlen(name);
    if (std::strncmp(line, name, length) == 0 && std::sscanf(line + length, "%" SCNu64, &value) == 1) break;
  }
  std::fclose(text);
  return value;
}

// What the machine, and the group of processes that this one is in (a container), have left. Memory that is filled at once
// must not take what everybody lives on: what does not fit here stays ordinary memory, filled as it is used.
bool fits_in_memory(uint64_t bytes, uint64_t shared_already) {
  static const uint64_t most = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) / 4 * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > most || shared_already > most - bytes) return false;
  uint64_t free = number_in("/proc/meminfo", "MemAvailable:");
  if (free != UINT64_MAX) free *= 1024;
  constexpr const char* kGroups[][2] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
  for (const auto& [limit_file, usage_file] : kGroups) {
    const uint64_t limit = number_in(limit_file, ""), usage = number_in(usage_file, "");
    if (limit != UINT64_MAX && usage != UINT64_MAX) free = std::min(free, limit > usage ? limit - usage : 0);
  }
  return bytes <= free / 2;
}

uint64_t bits(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

HostMemory& host_memory() {
  static HostMemory* const only = new HostMemory;  // never destroyed: programs free in exit handlers
  return *only;
}

void* HostMemory::allocate(uint64_t bytes, unsigned flags, uint64_t context) {
  const uint64_t size = round_to_pages(bytes);
  if (size < bytes) return nullptr;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::lock_guard lock(mutex_);
  allocations_[bits(memory)] = {bits(memory), bytes, flags, false, context, next_id_++};
  return memory;
}

void* HostMemory::allocate_shared(uint64_t bytes, unsigned flags, Context& context, CUresult* result) {
  const uint64_t size = round_to_pages(bytes);
  if (size < bytes || !fits_in_memory(size, shared_bytes_.load(std::memory_order_relaxed))) return nullptr;
  const int file = memfd_create("gpupool-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  // Filled at once, as pinned memory is.
  if (ftruncate(file, static_cast<off_t>(size)) == 0 && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0 &&
      fallocate(file, 0, 0, static_cast<off_t>(size)) == 0) {
    memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
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
  *result = context.session->share_host_memory(context, file, {id, size}, &taken);
  close(file);
  if (!taken || *result != CUDA_SUCCESS) {
    if (taken) context.session->post(wire::Command::release_host_memory, nullptr, wire::ReleaseHostMemory{id});
    else *result = CUDA_SUCCESS;  // memory that is not shared will do
    munmap(memory, size);
    return nullptr;
  }
  std::lock_guard lock(mutex_);
  HostAllocation& allocation = allocations_[bits(memory)] = {bits(memory), bytes, flags, false, context.handle, id};
  shared_bytes_.fetch_add(size, std::memory_order_relaxed);
  allocation.shared_with = context.session;
  allocation.epoch = epoch;
  return memory;
}

bool HostMemory::free(void* address) {
  Session* shared_with = nullptr;
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    const auto found = allocations_.find(bits(address));
    if (found == allocations_.end() || found->second.registered) return false;
    munmap(address, round_to_pages(found->second.size));
    shared_with = found->second.shared_with;
    if (shared_with) shared_bytes_.fetch_sub(round_to_pages(found->second.size), std::memory_order_relaxed);
    id = found->second.id;
    allocations_.erase(found);
  }
  if (shared_with) shared_with->post(wire::Command::release_host_memory, nullptr, wire::ReleaseHostMemory{id});
  return true;
}

std::optional<HostAllocation> HostMemory::use_shared(const void* address, uint64_t bytes, const Context& context, bool write,
                                                     bool wait) {
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
