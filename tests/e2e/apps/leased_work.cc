// Programs for pools with injected faults: they compute correct results or fail with a CUDA error.
#include <ctime>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

[[noreturn]] void give_up(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
  std::_Exit(1);
}

// A device of which a program uses a given percentage of the memory.
struct Place {
  Place(int ordinal, unsigned seed, size_t percent) : device(ordinal), seed(seed) {
    size_t free = 0, total = 0;
    OK(cuMemGetInfo(&free, &total));
    bytes = total / 100 * percent & ~size_t{4095};
    const CUresult taken = cuMemAlloc(&memory, bytes);
    if (taken == CUDA_ERROR_OUT_OF_MEMORY) give_up("MEMORY MISSING: the lease's memory is not there");
    OK(taken);
    OK(cuMemsetD32(memory, seed, bytes / 4));
    OK(cuMemAlloc(&values, 4096));
  }
  void use() const { OK(cuCtxSetCurrent(device.context)); }
  void round(unsigned number) const {
    use();
    OK(kernels.launch("fill", 4, 256, nullptr, values, seed + number, 1024u));
    const auto computed = download<uint32_t>(values, 1024);
    for (uint32_t i = 0; i < 1024; ++i) {
      if (computed[i] != seed + number + i) give_up("WRONG RESULT of a kernel");
    }
    const std::vector<uint8_t> sent = pattern(20'000, seed + number);
    const CUdeviceptr place = memory + number % 7 * 4096;
    OK(cuMemcpyHtoD(place, sent.data(), sent.size()));
    if (download<uint8_t>(place, sent.size()) != sent) give_up("WRONG RESULT of a copy");
    OK(cuMemsetD32(memory, seed, 65'536 / 4));
  }
  void end() const {
    use();
    for (const uint32_t word : download<uint32_t>(memory, bytes / 4)) {
      if (word != seed) give_up("WRONG RESULT: memory has changed");
    }
  }
  Device device;
  Kernels kernels;
  unsigned seed;
  size_t bytes = 0;
  CUdeviceptr memory = 0, values = 0;
};

}  // namespace

// [rounds, pause in ms, seed, percent]: allocates this percentage of each device's memory, prints "working",
// computes and copies on each device, and checks all results.
SCENARIO(leased_work) {
  const auto rounds = static_cast<unsigned>(std::stoul(arguments.at(0)));
  const long pause = std::stol(arguments.at(1)) * 1'000'000;
  const auto seed = static_cast<unsigned>(std::stoul(arguments.at(2)));
  const size_t percent = std::stoul(arguments.at(3));
  OK(cuInit(0));
  int count = 0;
  OK(cuDeviceGetCount(&count));
  std::vector<Place> places;
  places.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) places.emplace_back(i, seed + static_cast<unsigned>(i) * 65'537, percent);
  std::printf("working\n");
  std::fflush(stdout);
  for (unsigned round = 0; round < rounds; ++round) {
    for (const Place& place : places) place.round(round);
    const timespec time{0, pause};
    ::nanosleep(&time, nullptr);
  }
  for (const Place& place : places) place.end();
}
