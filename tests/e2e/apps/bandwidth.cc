// Throughput of large copies, with compressible or random data. Prints MB/s to stderr.
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

// Compressible data: alternates 16 times one letter with 16 random letters out of four.
void fill_with_text(std::vector<uint8_t>& bytes) {
  const auto random = pattern(bytes.size(), 5);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = (i / 16) % 2 != 0 ? 'a' : static_cast<uint8_t>("acgt"[random[i] & 3]);
}

template <class Copy>
void timed(const char* what, size_t bytes, Copy&& copy) {
  const auto start = std::chrono::steady_clock::now();
  copy();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::fprintf(stderr, "%s %.2f MB/s\n", what, static_cast<double>(bytes) / took.count() / 1e6);
}

}  // namespace

// [bytes] [text or random] [rounds]: copies pinned memory to the device and back.
SCENARIO(bandwidth) {
  Device device;
  const size_t bytes = arguments.empty() ? 32u << 20 : std::strtoull(arguments[0].c_str(), nullptr, 10);
  std::vector<uint8_t> data = pattern(bytes, 3);
  if (arguments.size() < 2 || arguments[1] == "text") fill_with_text(data);
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
  OK(cuMemAlloc(&memory, bytes));
  OK(cuMemAllocHost(&pinned, bytes));
  std::memcpy(pinned, data.data(), bytes);
  const int rounds = arguments.size() < 3 ? 1 : std::atoi(arguments[2].c_str());
  for (int i = 0; i < 20; ++i) {  // large enough to open the bulk connections
    OK(cuMemcpyHtoDAsync(memory, pinned, 256 << 10, nullptr));
    OK(cuStreamSynchronize(nullptr));
  }
  for (int i = 0; i < rounds; ++i) {
    timed("to the device", bytes, [&] {
      OK(cuMemcpyHtoDAsync(memory, pinned, bytes, nullptr));
      OK(cuStreamSynchronize(nullptr));
    });
    std::memset(pinned, 0, bytes);
    timed("from the device", bytes, [&] {
      OK(cuMemcpyDtoHAsync(pinned, memory, bytes, nullptr));
      OK(cuStreamSynchronize(nullptr));
    });
    EXPECT(std::memcmp(pinned, data.data(), bytes) == 0);
  }
}
