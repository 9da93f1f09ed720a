// Kernels that use host memory registered with cuMemHostRegister.
#include <atomic>
#include <cstring>
#include <numeric>

#include "tests/e2e/apps/scenario.h"

namespace app {
namespace {

constexpr unsigned kRegisteredCount = 30'000;

// Registered memory that does not start at a page boundary and has other data around it.
struct Registered {
  explicit Registered(unsigned flags = CU_MEMHOSTREGISTER_DEVICEMAP)
      : all(kRegisteredCount + 2000, 77u), values(all.data() + 1001) {
    std::iota(values, values + kRegisteredCount, 0u);
    OK(cuMemHostRegister(values, kRegisteredCount * sizeof(unsigned), flags));
    OK(cuMemHostGetDevicePointer(&device, values, 0));
  }
  bool others_untouched() const {
    for (unsigned i = 0; i < all.size(); ++i) {
      if ((i < 1001 || i >= 1001 + kRegisteredCount) && all[i] != 77) return false;
    }
    return true;
  }
  // True if all values have grown by `added` since the start.
  bool grew_by(unsigned added) const {
    for (unsigned i = 0; i < kRegisteredCount; ++i) {
      if (values[i] != i + added) return false;
    }
    return true;
  }
  std::vector<unsigned> all;
  unsigned* const values;
  CUdeviceptr device = 0;
};

void add(const Kernels& kernels, CUdeviceptr values, unsigned value, unsigned count,
         CUstream stream = nullptr) {
  OK(kernels.launch("add", (count + 255) / 256, 256, stream, values, value, count));
}

}  // namespace

// After each kind of wait the program sees what kernels wrote, and kernels see what the program wrote before
// their launch.
SCENARIO(registered_memory) {
  const Device device;
  const Kernels kernels;
  const Registered memory;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  unsigned added = 0;
  const auto next = [&] {
    EXPECT(memory.grew_by(added));
    for (unsigned i = 0; i < kRegisteredCount; ++i) ++memory.values[i];
    add(kernels, memory.device, 10, kRegisteredCount, stream);
    added += 11;
  };
  next();
  OK(cuCtxSynchronize());
  next();
  OK(cuStreamSynchronize(stream));
  next();
  OK(cuEventRecord(event, stream));
  OK(cuEventSynchronize(event));
  next();
  OK(cuEventRecord(event, stream));
  while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
  }
  next();
  while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
  }
  next();
  // A copy from the memory.
  CUdeviceptr word = 0;
  unsigned there = 0;
  OK(cuMemAlloc(&word, sizeof there));
  OK(cuMemcpyAsync(word, memory.device, sizeof there, stream));
  OK(cuMemcpyDtoHAsync(&there, word, sizeof there, stream));
  OK(cuStreamSynchronize(stream));
  EXPECT(there == added);
  // Work launched as a graph.
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  add(kernels, memory.device, 4, kRegisteredCount, stream);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  for (unsigned i = 0; i < kRegisteredCount; ++i) ++memory.values[i];
  OK(cuGraphLaunch(executable, stream));
  added += 5;
  OK(cuStreamSynchronize(stream));
  EXPECT(memory.grew_by(added));
  // A host function sees the results of earlier work.
  static std::atomic<unsigned> seen;
  static unsigned* first;
  first = memory.values;
  add(kernels, memory.device, 1, kRegisteredCount, stream);
  OK(cuLaunchHostFunc(
      stream, [](void*) { seen = *first; }, nullptr));
  OK(cuStreamSynchronize(stream));
  EXPECT(seen == ++added);
  // Copies from both the host and the device address.
  add(kernels, memory.device, 1, kRegisteredCount, stream);
  ++added;
  OK(cuMemcpyHtoDAsync(word, memory.values, sizeof there, stream));
  OK(cuMemcpyDtoHAsync(&there, word, sizeof there, stream));
  OK(cuStreamSynchronize(stream));
  EXPECT(there == added);
  OK(cuMemsetD32(memory.device, 5, 1));
  OK(cuCtxSynchronize());
  EXPECT(memory.values[0] == 5 && memory.values[1] == 1 + added);
  memory.values[0] = 6;
  OK(cuMemcpyDtoH(&there, memory.device, sizeof there));
  EXPECT(there == 6);
  EXPECT(memory.others_untouched());
  OK(cuMemFree(word));
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(stream));
  add(kernels, memory.device, 1, 1);
  OK(cuMemHostUnregister(memory.values));  // waits for the kernel
  EXPECT(memory.values[0] == 7);
  EXPECT(memory.others_untouched());
}

// The program writes one half while kernels write the other: no write is lost.
SCENARIO(registered_memory_used_by_both) {
  const Device device;
  const Kernels kernels;
  const Registered memory;
  CUstream streams[2] = {};
  for (CUstream& stream : streams) OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (unsigned round = 1; round <= 20; ++round) {
    for (CUstream const stream : streams) {
      const unsigned quarter = kRegisteredCount / 4;
      add(kernels, memory.device + (stream == streams[1] ? quarter * sizeof(unsigned) : 0), 1, quarter,
          stream);
      for (unsigned i = kRegisteredCount / 2; i < kRegisteredCount; ++i) ++memory.values[i];
    }
    OK(cuStreamSynchronize(streams[round % 2]));
    for (unsigned i = kRegisteredCount / 2; i < kRegisteredCount; ++i)
      EXPECT(memory.values[i] == i + 2 * round);
  }
  OK(cuCtxSynchronize());
  for (unsigned i = 0; i < kRegisteredCount; ++i)
    EXPECT(memory.values[i] == i + (i < kRegisteredCount / 2 ? 20 : 40));
  EXPECT(memory.others_untouched());
}

SCENARIO(registered_memory_and_its_address) {
  const Device device;
  const Kernels kernels;
  Registered memory(CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY);
  CUdeviceptr inside = 0, result = 0;
  OK(cuMemHostGetDevicePointer(&inside, memory.values + 100, 0));
  EXPECT(inside == memory.device + 100 * sizeof(unsigned));
  unsigned type = 0;
  void* host = nullptr;
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside));
  EXPECT(type == CU_MEMORYTYPE_HOST);
  OK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, inside));
  EXPECT(host == memory.values + 100);
  OK(cuPointerGetAttribute(&result, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                           reinterpret_cast<CUdeviceptr>(memory.values + 100)));
  EXPECT(result == inside);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(memory.device));
  // Kernels read what the program has written.
  memory.values[100] = 12;
  OK(cuMemAlloc(&result, sizeof(unsigned)));
  OK(cuMemcpyDtoD(result, inside, sizeof(unsigned)));
  EXPECT(download<unsigned>(result, 1)[0] == 12);
  OK(cuMemHostUnregister(memory.values));
  OK(cuMemHostRegister(memory.values, 4096, 0));
  // Destroying a context releases the device address.
  CUcontext other = create_context(device.device);
  OK(cuMemHostGetDevicePointer(&inside, memory.values, 0));
  OK(cuCtxDestroy(other));
  (void)cuMemHostUnregister(memory.values);  // the context may have released the registration
  OK(cuMemFree(result));
}

}  // namespace app
