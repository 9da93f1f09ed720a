// One device's memory in place of a session, for tests of single files of the client: copies are executed at
// once and recorded, and waits for the device are counted. Not thread-safe.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "client/copies/transfer.h"
#include "client/session/call.h"

namespace gpupool::client::test {

struct FakeDevice {
  struct Copy {
    bool to_device;
    uint64_t at, bytes;  // at: device address
    CopyOrder order;
  };
  uint64_t base = 0;
  std::vector<std::byte> memory;
  std::vector<Copy> copies;
  int waits = 0;
  CUresult result = CUDA_SUCCESS;  // result of copies

  std::byte& at(uint64_t address) { return memory.at(address - base); }
  size_t sent() const { return count(true); }
  size_t fetched() const { return count(false); }

 private:
  size_t count(bool to_device) const {
    size_t all = 0;
    for (const Copy& copy : copies) all += copy.to_device == to_device;
    return all;
  }
};

// Returns the only FakeDevice; reset() replaces its memory for a new test.
FakeDevice& fake_device();
void reset(uint64_t base, size_t bytes);

// A session object of which only the address and zero fields may be used.
Session& no_session(size_t number = 0);
// Returns a new context of that session with a handle; never freed.
Context& make_context(size_t session = 0);

}  // namespace gpupool::client::test
