// One device's memory for tests of single files of the client, in the place of a session: copies move bytes
// at once and are counted, and waits for the device are counted.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "client/call.h"
#include "client/transfer.h"

namespace gpupool::client::test {

struct FakeDevice {
  struct Copy {
    bool to_device;
    uint64_t at, bytes;  // of the device
    CopyOrder order;
  };
  uint64_t base = 0;
  std::vector<std::byte> memory;
  std::vector<Copy> copies;
  int waits = 0;
  CUresult result = CUDA_SUCCESS;  // of copies

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

// The only one. A new one for each test: reset().
FakeDevice& fake_device();
void reset(uint64_t base, size_t bytes);

// A session of which only the address, and fields that are 0, may be used.
Session& no_session(size_t number = 0);
// A context of that session with a handle, for the life of the process.
Context& make_context(size_t session = 0);

}  // namespace gpupool::client::test
