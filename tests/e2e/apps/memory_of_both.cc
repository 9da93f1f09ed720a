// Memory that the host and kernels both use, where host functions use it too, and where data for it is on its way.
#include <algorithm>
#include <numeric>

#include "tests/e2e/apps/scenario.h"

namespace app {
namespace {

constexpr size_t kCount = 60'000, kBytes = kCount * sizeof(unsigned);

CUdeviceptr on_device(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

unsigned* managed(size_t bytes = kBytes) {
  CUdeviceptr address = 0;
  OK(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL));
  return reinterpret_cast<unsigned*>(address);
}

CUstream new_stream() {
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

void add(const Kernels& kernels, CUdeviceptr values, unsigned value, CUstream stream, unsigned count = kCount) {
  OK(kernels.launch("add", (count + 255) / 256, 256, stream, values, value, count));
}

bool counts_from(const unsigned* values, unsigned first, size_t count = kCount) {
  for (size_t i = 0; i < count; ++i) {
    if (values[i] != first + i) return false;
  }
  return true;
}

}  // namespace

// Late copies have a thread of their own, which starts after that of the program's functions.
SCENARIO(managed_memory_in_host_functions_beside_late_copies) {
  const Device device;
  const Kernels kernels;
  CUstream const stream = new_stream();
  struct Buffers {
    unsigned *values, *pinned;
  } buffers{managed(), nullptr};
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, kBytes));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&buffers.pinned), kBytes));
  std::iota(buffers.values, buffers.values + kCount, 0u);
  for (unsigned round = 1; round <= 5; ++round) {
    add(kernels, on_device(buffers.values), 1, stream);
    OK(cuLaunchHostFunc(stream, [](void* user) {
      const auto& [values, pinned] = *static_cast<Buffers*>(user);
      std::copy_n(values, kCount, pinned);
    }, &buffers));
    OK(cuMemcpyHtoDAsync(memory, buffers.pinned, kBytes, stream));
    OK(cuStreamSynchronize(stream));
    EXPECT(counts_from(download<unsigned>(memory, kCount).data(), round));
  }
  EXPECT(counts_from(buffers.values, 5));
}

}  // namespace app
