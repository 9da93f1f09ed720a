// A file in memory, for the tests and the fuzzer of suspended sessions. Not thread-safe; throws
// std::runtime_error if the file cannot be created or written.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace gpupool::testing {

class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes = {})
      : descriptor_(::memfd_create("suspended", MFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::runtime_error("memfd_create failed");
    if (::write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      ::close(descriptor_);
      throw std::runtime_error("a file in memory cannot be written");
    }
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int descriptor() const { return descriptor_; }
  uint64_t size() const { return static_cast<uint64_t>(::lseek(descriptor_, 0, SEEK_END)); }

 private:
  const int descriptor_;
};

}  // namespace gpupool::testing
