// Pages of this process at addresses that were chosen elsewhere, each with two places: where the program has it, protected or
// not, and an alias that the client can always read and write. So a page is complete before the program sees it, and the
// client never faults.
//
// The memory is a memfd as long as the range, of which only what is used takes memory. The kernel knows which pages were ever
// touched (touched()), and a forked child has none of them, as with CUDA. Not thread-safe, but for alias().
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace gpupool::client {

class HostPages {
 public:
  enum class Use { none, read, write };

  // Addresses [base, base + size), whole pages. `taken`: they are reserved in this process already; else they must be free.
  // Null: they are not, or there is no memory.
  static std::unique_ptr<HostPages> create(uint64_t base, uint64_t size, bool taken);
  ~HostPages();
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  // To make a file longer than the limit would end the program (SIGXFSZ).
  static bool may_have_file(uint64_t size);

  static uint64_t page();
  static uint64_t down(uint64_t address) { return address / page() * page(); }
  static uint64_t up(uint64_t address) { return down(address + page() - 1); }

  // Whole pages. False: the kernel refuses.
  bool show(uint64_t address, uint64_t bytes, Use use);
  bool protect(uint64_t address, uint64_t bytes, Use use);
  // Reserved without memory again.
  void hide(uint64_t address, uint64_t bytes);
  std::byte* alias(uint64_t address) const { return alias_ + (address - base_); }
  // Calls `found(begin, end)` for what was ever touched of it.
  void touched(uint64_t begin, uint64_t end, const std::function<void(uint64_t, uint64_t)>& found) const;

 private:
  HostPages(uint64_t base, uint64_t size, int file, std::byte* alias, bool owned)
      : base_(base), size_(size), file_(file), alias_(alias), owned_(owned) {}
  const uint64_t base_, size_;
  const int file_;
  std::byte* const alias_;
  const bool owned_;  // the addresses are unmapped at the end
};

}  // namespace gpupool::client
