// Memory used by the host and by kernels: together with host functions, and with data in flight.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "tests/e2e/apps/scenario.h"

namespace app {
namespace {

constexpr size_t kCount = 60'000, kBytes = kCount * sizeof(unsigned);

CUdeviceptr on_device(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

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

void add(const Kernels& kernels, CUdeviceptr values, unsigned value, CUstream stream,
         unsigned count = kCount) {
  OK(kernels.launch("add", (count + 255) / 256, 256, stream, values, value, count));
}

bool counts_from(const unsigned* values, unsigned first, size_t count = kCount) {
  for (size_t i = 0; i < count; ++i) {
    if (values[i] != first + i) return false;
  }
  return true;
}

// Holds a stream with a host function until release() is called.
struct Door {
  void hold(CUstream stream) {
    open = false;
    OK(cuLaunchHostFunc(
        stream, [](void* door) { static_cast<Door*>(door)->open.wait(false); }, this));
  }
  void release() {
    open = true;
    open.notify_all();
  }
  std::atomic<bool> open{false};
};

// A host function that adds 1 to each of `values` after the door was opened.
struct Increment {
  explicit Increment(unsigned* memory) : values(memory) {}
  static void run(void* user) {
    auto& self = *static_cast<Increment*>(user);
    self.door.open.wait(false);
    for (size_t i = 0; i < kCount; ++i) ++self.values[i];
  }
  unsigned* const values;
  Door door;
};

}  // namespace

// Late copies have their own thread, which starts after the host functions' thread.
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
    OK(cuLaunchHostFunc(
        stream,
        [](void* user) {
          const auto& [values, pinned] = *static_cast<Buffers*>(user);
          std::copy_n(values, kCount, pinned);
        },
        &buffers));
    OK(cuMemcpyHtoDAsync(memory, buffers.pinned, kBytes, stream));
    OK(cuStreamSynchronize(stream));
    EXPECT(counts_from(download<unsigned>(memory, kCount).data(), round));
  }
  EXPECT(counts_from(buffers.values, 5));
}

// The host writes, a host function adds to the values, and a later kernel adds to the result.
SCENARIO(managed_memory_written_by_host_functions) {
  const Device device;
  const Kernels kernels;
  kernels.load({"add"});
  CUstream const stream = new_stream();
  Increment increment(managed());
  unsigned* const values = increment.values;
  const CUdeviceptr address = on_device(values);
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, kBytes));
  for (unsigned round = 1; round <= 3; ++round) {
    std::iota(values, values + kCount, 40 * round);
    increment.door.open = false;
    OK(cuLaunchHostFunc(stream, Increment::run, &increment));
    add(kernels, address, 1, stream);
    increment.door.release();
    OK(cuStreamSynchronize(stream));
    EXPECT(counts_from(values, 40 * round + 2));
    // The copy reads what the host function wrote; the kernel after the copy adds to it.
    increment.door.open = false;
    OK(cuLaunchHostFunc(stream, Increment::run, &increment));
    OK(cuMemcpyDtoDAsync(memory, address, kBytes, stream));
    add(kernels, address, 5, stream);
    increment.door.release();
    OK(cuStreamSynchronize(stream));
    EXPECT(counts_from(download<unsigned>(memory, kCount).data(), 40 * round + 3));
    EXPECT(counts_from(values, 40 * round + 8));
  }
}

// A kernel can use memory again after a host function has read it.
SCENARIO(managed_memory_read_by_host_functions) {
  const Device device;
  const Kernels kernels;
  kernels.load({"add"});
  CUstream const stream = new_stream();
  struct Reader {
    const unsigned* values;
    Door door;
    std::atomic<unsigned> sum{0};
  } reader{managed(), {}, {}};
  auto* const values = const_cast<unsigned*>(reader.values);
  std::iota(values, values + kCount, 7u);
  for (unsigned round = 0; round < 3; ++round) {
    reader.door.open = false;
    add(kernels, on_device(values), 1, stream);
    OK(cuLaunchHostFunc(
        stream,
        [](void* user) {
          auto& self = *static_cast<Reader*>(user);
          self.door.open.wait(false);
          self.sum = self.values[0] + self.values[kCount - 1];
        },
        &reader));
    add(kernels, on_device(values), 1, stream);
    reader.door.release();
    OK(cuStreamSynchronize(stream));
    EXPECT(reader.sum == 2 * (8 + 2 * round) + kCount - 1);
    EXPECT(counts_from(values, 9 + 2 * round));
  }
}

// The same in a graph: one host function before a kernel and one after it.
SCENARIO(managed_memory_of_host_functions_in_graphs) {
  const Device device;
  const Kernels kernels;
  CUstream const stream = new_stream();
  Increment increment(managed());
  unsigned* const values = increment.values;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuLaunchHostFunc(stream, Increment::run, &increment));
  add(kernels, on_device(values), 2, stream);
  OK(cuLaunchHostFunc(stream, Increment::run, &increment));
  add(kernels, on_device(values), 4, stream);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  for (unsigned round = 1; round <= 3; ++round) {
    std::iota(values, values + kCount, 100 * round);
    increment.door.open = false;
    OK(cuGraphLaunch(executable, stream));
    increment.door.release();
    OK(cuStreamSynchronize(stream));
    EXPECT(counts_from(values, 100 * round + 8));
  }
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
}

// After a synchronous copy returns, the program may overwrite the source.
SCENARIO(managed_memory_written_after_a_synchronous_copy) {
  const Device device;
  const Kernels kernels;
  kernels.load({"add"});
  CUstream const stream = new_stream();
  unsigned* const values = managed();
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, kBytes));
  std::iota(values, values + kCount, 1u);
  // The copy waits for this host function.
  OK(cuLaunchHostFunc(
      nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr));
  OK(cuMemcpyHtoD(memory, values, kBytes));
  std::iota(values, values + kCount, 1000u);
  add(kernels, on_device(values), 1, stream);
  OK(cuCtxSynchronize());
  EXPECT(counts_from(download<unsigned>(memory, kCount).data(), 1));
  EXPECT(counts_from(values, 1001));
}

// Prefetches memory to the host, in a stream that does not wait for the null stream, while data of a
// synchronous copy is in flight.
SCENARIO(managed_memory_prefetched_behind_a_copy) {
  const Device device;
  CUstream const stream = new_stream();
  constexpr size_t kLarge = 2'000'000, kLargeBytes = kLarge * sizeof(unsigned);
  unsigned* const values = managed(kLargeBytes);
  std::vector<unsigned> source(kLarge);
  for (unsigned round = 1; round <= 3; ++round) {
    std::iota(source.begin(), source.end(), round);
    OK(cuMemcpyHtoD(on_device(values), source.data(), kLargeBytes));
#if CUDA_VERSION >= 13000
    OK(cuMemPrefetchAsync(on_device(values), kLargeBytes, CUmemLocation{CU_MEM_LOCATION_TYPE_HOST, {0}}, 0,
                          stream));
#else
    OK(cuMemPrefetchAsync(on_device(values), kLargeBytes, CU_DEVICE_CPU, stream));
#endif
    OK(cuStreamSynchronize(stream));
    EXPECT(counts_from(values, round, kLarge));
  }
}

// A wait of another thread that starts while a copy is being queued does not include all of the copy.
SCENARIO(managed_memory_copied_beside_a_thread_that_waits) {
  const Device device;
  constexpr size_t kSlices = 6, kSlice = 2 << 20, kLarge = kSlices * kSlice / sizeof(unsigned);
  unsigned* const values = managed(2 * kSlices * kSlice);
  std::vector<unsigned> source(kLarge);
  std::atomic<unsigned> waits{0};
  std::atomic<bool> over{false};
  std::thread waiting([&] {
    OK(cuCtxSetCurrent(device.context));
    for (; !over; ++waits, waits.notify_all()) OK(cuCtxSynchronize());
  });
  for (unsigned round = 1; round <= 5; ++round) {
    std::iota(source.begin(), source.end(), round);
    CUDA_MEMCPY3D copy{};  // slices are queued one after the other
    copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = source.data(), copy.srcPitch = kSlice,
    copy.srcHeight = 1;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE, copy.dstDevice = on_device(values), copy.dstPitch = kSlice,
    copy.dstHeight = 2;
    copy.WidthInBytes = kSlice, copy.Height = 1, copy.Depth = kSlices;
    OK(cuMemcpy3D(&copy));
    waits.wait(waits.load());
    for (size_t slice = kSlices; slice-- > 0;) {
      const size_t words = kSlice / sizeof(unsigned);
      EXPECT(counts_from(values + 2 * slice * words, round + static_cast<unsigned>(slice * words), words));
    }
  }
  over = true;
  waiting.join();
}

namespace {

// Registered memory that does not start at a page boundary and has other data around it.
struct Registered {
  Registered() : all(kCount + 2000, 77u), values(all.data() + 1001) {
    std::iota(values, values + kCount, 1u);
    OK(cuMemHostRegister(values, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  }
  CUdeviceptr address() const {
    CUdeviceptr device = 0;
    OK(cuMemHostGetDevicePointer(&device, values, 0));
    return device;
  }
  std::vector<unsigned> all;
  unsigned* const values;
};

// Returns a completed event. Querying it makes the client fetch what kernels have changed so far.
CUevent done_event() {
  CUevent event = nullptr;
  CUstream const stream = new_stream();
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventRecord(event, stream));
  OK(cuStreamSynchronize(stream));
  return event;
}

}  // namespace

// The program's writes are sent to the device before a kernel whose stream is held, and other waits must not
// overwrite them.
SCENARIO(registered_memory_in_front_of_a_kernel_that_waits) {
  const Device device;
  const Kernels kernels;
  kernels.load({"add"});
  CUstream const stream = new_stream();
  CUevent const event = done_event();
  const Registered memory;
  const CUdeviceptr address = memory.address();
  Door door;
  for (unsigned round = 1; round <= 3; ++round) {
    std::iota(memory.values, memory.values + kCount, 10 * round);
    door.hold(stream);
    add(kernels, address, 1, stream);
    OK(cuEventQuery(event));
    EXPECT(counts_from(memory.values, 10 * round));
    door.release();
    OK(cuStreamSynchronize(stream));
    EXPECT(counts_from(memory.values, 10 * round + 1));
  }
}

// The same when kernels get access to the memory for the first time.
SCENARIO(registered_memory_shown_to_kernels_behind_a_host_function) {
  const Device device;
  const Kernels kernels;
  kernels.load({"add"});
  CUstream const stream = new_stream();
  CUevent const event = done_event();
  const Registered memory;
  Door door;
  door.hold(nullptr);
  const CUdeviceptr address = memory.address();
  add(kernels, address, 1, stream);
  OK(cuEventQuery(event));
  EXPECT(memory.values[0] == 1 || memory.values[0] == 2);
  door.release();
  OK(cuStreamSynchronize(stream));
  EXPECT(counts_from(memory.values, 2));
}

// A host function between two kernels, in a stream and in a graph.
SCENARIO(registered_memory_written_by_host_functions) {
  const Device device;
  const Kernels kernels;
  kernels.load({"add"});
  CUstream const stream = new_stream();
  const Registered memory;
  const CUdeviceptr address = memory.address();
  Increment increment(memory.values);
  const auto give = [&] {
    add(kernels, address, 10, stream);
    OK(cuLaunchHostFunc(stream, Increment::run, &increment));
    add(kernels, address, 100, stream);
  };
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  give();
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  for (unsigned round = 0; round < 4; ++round) {
    increment.door.open = false;
    if (round % 2 == 0)
      give();
    else
      OK(cuGraphLaunch(executable, stream));
    increment.door.release();
    OK(cuStreamSynchronize(stream));
    EXPECT(counts_from(memory.values, 1 + 111 * (round + 1)));
  }
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
}

}  // namespace app
