// Pages at an address that was chosen elsewhere, mapped twice: at the program's address, with changing
// protection, and at an alias that the client can always access. So a page is complete before the program
// sees it, and the client never faults.
//
// The memory is a memfd as long as the range; only touched pages take memory. The kernel knows which pages
// were ever touched (for_each_populated()). A forked child inherits none of the pages, as with CUDA. Used by
// Mirrors under its mutex. Not thread-safe, except alias().
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace gpupool::client {

class HostPages {
 public:
  enum class Use { none, read, write };

  // Addresses [base, base + size), whole pages. `taken`: the process has already reserved them; otherwise
  // they must be free. Returns null if they are not free or memory is exhausted.
  static std::unique_ptr<HostPages> create(uint64_t base, uint64_t size, bool taken);
  ~HostPages();
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  // False if a file of this size would exceed RLIMIT_FSIZE, which would kill the program with SIGXFSZ.
  static bool may_have_file(uint64_t size);

  static uint64_t page();
  static uint64_t down(uint64_t address) { return address / page() * page(); }
  static uint64_t up(uint64_t address) { return down(address + page() - 1); }

  // show() maps whole pages at the program's address, protect() changes their protection. False: the kernel
  // refused.
  bool show(uint64_t address, uint64_t bytes, Use use);
  bool protect(uint64_t address, uint64_t bytes, Use use);
  // Unmaps the pages and frees their memory; the addresses stay reserved.
  void hide(uint64_t address, uint64_t bytes);
  std::byte* alias(uint64_t address) const { return alias_ + (address - base_); }
  // Calls `found(begin, end)` for each part that was ever touched.
  void for_each_populated(uint64_t begin, uint64_t end,
                          const std::function<void(uint64_t, uint64_t)>& found) const;

 private:
  HostPages(uint64_t base, uint64_t size, int file, std::byte* alias, bool owned)
      : base_(base), size_(size), file_(file), alias_(alias), owned_(owned) {}
  const uint64_t base_, size_;
  const int file_;
  std::byte* const alias_;
  const bool owned_;  // the destructor unmaps the addresses
};

}  // namespace gpupool::client
