// Work whose result shows a command that was lost, repeated or executed out of order.
#include <cstring>
#include <filesystem>

#include "tests/e2e/apps/scenario.h"

using namespace app;

// counting ROUNDS BYTES [FILE]: every round adds to numbers in device memory, and passes BYTES through the
// device in both directions, synchronously and in a stream. Ends earlier when the file exists.
SCENARIO(counting) {
  Device device;
  Kernels kernels;
  const unsigned rounds = static_cast<unsigned>(std::stoul(arguments.at(0)));
  const size_t bytes = std::stoul(arguments.at(1));
  const unsigned count = static_cast<unsigned>(bytes / sizeof(unsigned));
  CUdeviceptr sums = 0, data = 0;
  CUstream stream = nullptr;
  unsigned *pinned = nullptr, *back = nullptr;
  OK(cuMemAlloc(&sums, bytes));
  OK(cuMemAlloc(&data, bytes));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), bytes));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&back), bytes));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemsetD32(sums, 0, count));
  OK(cuCtxSynchronize());
  std::printf("working\n");
  std::fflush(stdout);
  std::vector<unsigned> pageable(count), expected(count);
  const size_t compared = count * sizeof(unsigned);
  // Sets the expected numbers. Single comparisons, without optimisation, would take longer than the copies.
  const auto expect_from = [&](unsigned value) {
    unsigned* const to = expected.data();
    for (unsigned i = 0; i < count; ++i, value += 2654435761u) to[i] = value;
  };
  const auto is_to_end = [&] { return arguments.size() > 2 && std::filesystem::exists(arguments[2]); };
  unsigned round = 1;
  for (; round <= rounds && !is_to_end(); ++round) {
    expect_from(round);
    pageable = expected;
    OK(cuMemcpyHtoD(data, pageable.data(), bytes));
    std::memset(pageable.data(), 0, bytes);  // the copy has read it
    for (unsigned launch = 0; launch < 20; ++launch)
      OK(kernels.launch("add", (count + 255) / 256, 256, nullptr, sums, 1u, count));
    OK(cuMemcpyDtoH(pageable.data(), data, bytes));
    EXPECT(pageable == expected);
    std::memcpy(pinned, pageable.data(), bytes);
    OK(cuMemcpyHtoDAsync(data, pinned, bytes, stream));
    OK(kernels.launch("add", (count + 255) / 256, 256, stream, data, round, count));
    OK(cuMemcpyDtoHAsync(back, data, bytes, stream));
    OK(cuStreamSynchronize(stream));
    expect_from(2 * round);
    EXPECT(std::memcmp(back, expected.data(), compared) == 0);
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH(pageable.data(), sums, bytes));
    EXPECT(pageable == std::vector<unsigned>(count, 20 * round));
  }
  std::printf("counted to %u\n", 20 * (round - 1));
}
