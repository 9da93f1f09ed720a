// A file in a FUSE file system that answers open() but never close(): closing it blocks until this object is
// destroyed. A thread of its own serves the file system.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "tests/support/processes.h"

namespace gpupool::testing {

class SlowFile {
 public:
  SlowFile();  // throws std::runtime_error if this process may not mount it
  ~SlowFile();
  SlowFile(const SlowFile&) = delete;
  SlowFile& operator=(const SlowFile&) = delete;
  std::string path() const { return folder_.path() / "file"; }
  bool holds_up_somebody() const { return unanswered_; }

 private:
  void serve();
  void answer(uint64_t request, const void* body, size_t bytes) const;

  TemporaryFolder folder_;
  int device_ = -1, stop_ = -1;
  std::atomic<bool> unanswered_{false};
  std::thread server_;
};

}  // namespace gpupool::testing
