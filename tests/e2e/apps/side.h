// Helpers of scenarios that use two devices.
#pragma once
#include <algorithm>
#include <source_location>
#include <string>

#include "tests/e2e/apps/scenario.h"

namespace app {

// A device with its primary context, kernels, a stream and memory.
struct Side {
  explicit Side(int ordinal, size_t bytes = 0) : device(ordinal) {
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (bytes) OK(cuMemAlloc(&memory, bytes));
  }
  void use() const { OK(cuCtxSetCurrent(device.context)); }
  Device device;
  Kernels kernels;
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
};

inline void expect_at(CUdeviceptr address, const std::vector<uint8_t>& expected,
                      std::source_location caller = std::source_location::current()) {
  const auto found = download<uint8_t>(address, expected.size());
  if (found == expected) return;  // memcmp, much faster than std::mismatch without optimisation
  const auto differ = std::mismatch(found.begin(), found.end(), expected.begin());
  const auto text = std::to_string(found.size()) + " bytes differ from byte " +
                    std::to_string(differ.first - found.begin());
  fail(caller.file_name(), static_cast<int>(caller.line()), text.c_str());
}

inline void put(CUdeviceptr address, const std::vector<uint8_t>& bytes) {
  OK(cuMemcpyHtoD(address, bytes.data(), bytes.size()));
}

}  // namespace app
