#include "client/memory/host_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "client/memory/host_memory.h"

namespace gpupool::client {
namespace {

int protection(HostPages::Use use) {
  return use == HostPages::Use::none   ? PROT_NONE
         : use == HostPages::Use::read ? PROT_READ
                                       : PROT_READ | PROT_WRITE;
}

// Reserves the addresses before another mapping of this process takes them.
bool reserve(uint64_t base, uint64_t size) {
  void* const got = mmap(host_pointer(base), size, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == host_pointer(base)) return true;
  if (got != MAP_FAILED) munmap(got, size);  // kernels before 4.17 treat MAP_FIXED_NOREPLACE as a hint
  return false;
}

}  // namespace

uint64_t HostPages::page() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

bool HostPages::may_have_file(uint64_t size) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && size <= limit.rlim_cur;
}

std::unique_ptr<HostPages> HostPages::create(uint64_t base, uint64_t size, bool taken) {
  if (!may_have_file(size)) return nullptr;
  if (!taken && !reserve(base, size)) return nullptr;
  const int file = memfd_create("gpupool-managed", MFD_CLOEXEC);
  void* alias = MAP_FAILED;
  if (file >= 0 && ftruncate(file, static_cast<off_t>(size)) == 0) {
    alias = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  }
  if (alias == MAP_FAILED) {
    if (file >= 0) close(file);
    if (!taken) munmap(host_pointer(base), size);
    return nullptr;
  }
  madvise(alias, size, MADV_DONTFORK);
  return std::unique_ptr<HostPages>(new HostPages(base, size, file, static_cast<std::byte*>(alias), !taken));
}

HostPages::~HostPages() {
  munmap(alias_, size_);
  close(file_);
  if (owned_) munmap(host_pointer(base_), size_);
}

bool HostPages::show(uint64_t address, uint64_t bytes, Use use) {
  const void* const got =
      mmap(host_pointer(address), bytes, protection(use), MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_,
           static_cast<off_t>(address - base_));
  return got != MAP_FAILED && madvise(host_pointer(address), bytes, MADV_DONTFORK) == 0;
}

bool HostPages::protect(uint64_t address, uint64_t bytes, Use use) {
  return mprotect(host_pointer(address), bytes, protection(use)) == 0;
}

void HostPages::hide(uint64_t address, uint64_t bytes) {
  (void)mmap(host_pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
  (void)fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(address - base_),
                  static_cast<off_t>(bytes));
}

void HostPages::for_each_populated(uint64_t begin, uint64_t end,
                                   const std::function<void(uint64_t, uint64_t)>& found) const {
  for (uint64_t at = begin; at < end;) {
    const off_t data = lseek(file_, static_cast<off_t>(at - base_), SEEK_DATA);
    if (data < 0 || base_ + static_cast<uint64_t>(data) >= end) return;
    const off_t hole = lseek(file_, data, SEEK_HOLE);
    const uint64_t until = hole < 0 ? end : std::min(end, base_ + static_cast<uint64_t>(hole));
    found(std::max(at, base_ + static_cast<uint64_t>(data)), until);
    at = until;
  }
}

}  // namespace gpupool::client
