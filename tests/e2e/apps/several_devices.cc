// Programs that use two devices: they must not see whether both are of one server or of two.
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/e2e/apps/side.h"

using namespace app;

extern const char kernels_ptx[];

SCENARIO(devices_numbered_through) {
  OK(cuInit(0));
  int count = 0;
  OK(cuDeviceGetCount(&count));
  std::printf("%d devices\n", count);
  GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&count, count));
  CUdevice device = 0;
  CUuuid uuids[2];
  CUcontext contexts[2];
  for (int i = 0; i < 2; ++i) {
    OK(cuDeviceGet(&device, i));
    EXPECT(device == i);
    char bus[32];
    OK(cuDeviceGetPCIBusId(bus, sizeof bus, device));
    OK(cuDeviceGetByPCIBusId(&device, bus));
    EXPECT(device == i);
    int domain = 0;
    OK(cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, i));
    EXPECT(std::stoi(bus, nullptr, 16) == domain);
    OK(cuDeviceGetUuid(&uuids[i], i));
    OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
    OK(cuCtxSetCurrent(contexts[i]));
    OK(cuCtxGetDevice(&device));
    EXPECT(device == i);
    size_t free = 0, total = 0, bytes = 0;
    OK(cuMemGetInfo(&free, &total));
    OK(cuDeviceTotalMem(&bytes, i));
    std::printf("device %d: %zu bytes\n", i, bytes);
    EXPECT(free > 0 && free <= total && total == bytes);
    CUdeviceptr memory = 0;
    OK(cuMemAlloc(&memory, 1 << 20));
    int ordinal = -1;
    CUcontext owner = nullptr;
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
    EXPECT(ordinal == i && owner == contexts[i]);
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void* host = &device;
    void* answers[] = {&ordinal, &host};
    OK(cuPointerGetAttributes(2, attributes, answers, memory));
    EXPECT(ordinal == i && host == nullptr);
  }
  EXPECT(std::memcmp(&uuids[0], &uuids[1], sizeof uuids[0]) != 0);
  EXPECT(contexts[0] != contexts[1]);
#if CUDA_VERSION >= 12000
  unsigned long long ids[2];
  for (int i = 0; i < 2; ++i) OK(cuCtxGetId(contexts[i], &ids[i]));
  EXPECT(ids[0] != ids[1]);
#endif
}

SCENARIO(kernels_on_two_devices) {
  constexpr unsigned kCount = 4096;
  const Side sides[] = {Side(0, kCount * 4), Side(1, kCount * 4)};
  for (unsigned round = 0; round < 20; ++round) {
    for (const Side& side : sides) {
      side.use();
      OK(side.kernels.launch("fill", kCount / 256, 256, side.stream, side.memory, round, kCount));
      OK(side.kernels.launch("add", kCount / 256, 256, side.stream, side.memory, 5u, kCount));
    }
  }
  for (const Side& side : sides) {
    side.use();
    OK(cuStreamSynchronize(side.stream));
    EXPECT(download<uint32_t>(side.memory, kCount)[kCount - 1] == 19 + 5 + kCount - 1);
  }
  // Memory can be freed whichever context is current.
  OK(cuMemFree(sides[0].memory));
  sides[0].use();
  OK(cuMemFree(sides[1].memory));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(sides[1].memory));
  // Streams can also be destroyed and synchronized.
  OK(cuStreamSynchronize(sides[1].stream));
  OK(cuStreamQuery(sides[1].stream));
  OK(cuStreamDestroy(sides[1].stream));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(sides[1].stream));
}

SCENARIO(what_belongs_to_another_device) {
  const Side here(0, 4096), there(1, 4096);
  CUevent event = nullptr, other = nullptr;
  there.use();
  OK(cuEventCreate(&other, CU_EVENT_DEFAULT));
  OK(cuEventRecord(other, there.stream));
  here.use();
  OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
  OK(cuEventRecord(event, here.stream));
  // The error may come immediately or with the next call that waits.
  const auto outcome = [](CUresult result) {
    return name_of(result != CUDA_SUCCESS ? result : cuCtxSynchronize());
  };
  std::printf("an event on another device's stream: %s\n", outcome(cuEventRecord(event, there.stream)));
  std::printf("another device's event on a stream: %s\n", outcome(cuEventRecord(other, here.stream)));
  OK(cuEventSynchronize(other));
  OK(cuEventQuery(other));
  OK(cuEventSynchronize(event));
  const CUfunction nothing = there.kernels.function("nothing");
  std::printf("another device's kernel: %s\n",
              outcome(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, here.stream, nullptr, nullptr)));
  std::printf("its own stream does not help: %s\n",
              outcome(here.kernels.launch("nothing", 1, 1, there.stream)));
  OK(cuCtxSynchronize());
  GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(reinterpret_cast<CUcontext>(0x1230), 0));
  GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(there.device.context));
  int can = 0;
  GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&can, 0, 2));
  OK(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED, 0, 1));
  OK(cuDeviceCanAccessPeer(&can, 0, 1));
  // Peer access agrees with cuDeviceCanAccessPeer.
  if (can)
    OK(cuCtxEnablePeerAccess(there.device.context, 0));
  else
    GIVES(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(there.device.context, 0));
}

// A kernel node runs in its function's context, whichever is current.
SCENARIO(graph_of_two_devices) {
  constexpr unsigned kCount = 4096;
  const Side a(0, kCount * 4), b(1, kCount * 4);
  b.use();
  unsigned start = 7, more = 5, count = kCount;
  CUdeviceptr filled_memory = a.memory, added_memory = b.memory;
  void* fill_parameters[] = {&filled_memory, &start, &count};
  void* add_parameters[] = {&added_memory, &more, &count};
  CUDA_KERNEL_NODE_PARAMS fill{};
  fill.func = a.kernels.function("fill");
  fill.gridDimX = kCount / 256;
  fill.blockDimX = 256;
  fill.gridDimY = fill.gridDimZ = fill.blockDimY = fill.blockDimZ = 1;
  CUDA_KERNEL_NODE_PARAMS add = fill;
  fill.kernelParams = fill_parameters;
  add.func = b.kernels.function("add");
  add.kernelParams = add_parameters;
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = a.memory;
  copy.dstDevice = b.memory;
  copy.WidthInBytes = kCount * 4;
  copy.Height = copy.Depth = 1;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUgraphNode filled = nullptr, copied = nullptr, added = nullptr;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddKernelNode(&filled, graph, nullptr, 0, &fill));
  OK(cuGraphAddMemcpyNode(&copied, graph, &filled, 1, &copy, a.device.context));
  OK(cuGraphAddKernelNode(&added, graph, &copied, 1, &add));
  OK(cuGraphInstantiate(&executable, graph, 0));
  for (const Side* const side : {&b, &a}) {
    side->use();
    OK(cuGraphLaunch(executable, side->stream));
    OK(cuStreamSynchronize(side->stream));
    EXPECT(download<uint32_t>(a.memory, kCount)[kCount - 1] == start + kCount - 1);
    EXPECT(download<uint32_t>(b.memory, kCount)[kCount - 1] == start + more + kCount - 1);
    start = 100;
    OK(cuGraphExecKernelNodeSetParams(executable, filled, &fill));
  }
}

SCENARIO(capture_over_two_devices) {
  constexpr unsigned kCount = 4096;
  const Side a(0, kCount * 4), b(1, kCount * 4);
  CUevent fork = nullptr, join = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  b.use();
  OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  a.use();
  OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  OK(cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(a.kernels.launch("fill", kCount / 256, 256, a.stream, a.memory, 1u, kCount));
  OK(cuEventRecord(fork, a.stream));
  b.use();
  OK(cuStreamWaitEvent(b.stream, fork, 0));
  OK(b.kernels.launch("fill", kCount / 256, 256, b.stream, b.memory, 2u, kCount));
  OK(cuEventRecord(join, b.stream));
  a.use();
  OK(cuStreamWaitEvent(a.stream, join, 0));
  OK(cuStreamEndCapture(a.stream, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphLaunch(executable, a.stream));
  OK(cuStreamSynchronize(a.stream));
  EXPECT(download<uint32_t>(a.memory, kCount)[kCount - 1] == 1 + kCount - 1);
  EXPECT(download<uint32_t>(b.memory, kCount)[kCount - 1] == 2 + kCount - 1);
}

// Each round fills on device 0, copies to device 1, adds there and copies back; all rounds are queued before
// the first starts.
SCENARIO(a_chain_over_two_devices) {
  constexpr unsigned kCount = 300'000;
  const Side a(0, kCount * 4), b(1, kCount * 4);
  CUevent filled = nullptr, counted = nullptr;
  a.use();
  OK(cuEventCreate(&filled, CU_EVENT_DISABLE_TIMING));
  b.use();
  OK(cuEventCreate(&counted, CU_EVENT_DISABLE_TIMING));
  constexpr unsigned kRounds = 12;
  std::atomic<bool> go{false};
  a.use();
  // Holds the stream; the calls below must not wait for it.
  OK(cuLaunchHostFunc(
      a.stream,
      [](void* user) {
        while (!static_cast<std::atomic<bool>*>(user)->load()) std::this_thread::yield();
      },
      &go));
  for (unsigned round = 0; round < kRounds; ++round) {
    a.use();
    if (round)
      OK(cuStreamWaitEvent(a.stream, counted, 0));
    else
      OK(a.kernels.launch("fill", (kCount + 255) / 256, 256, a.stream, a.memory, 1u, kCount));
    OK(a.kernels.launch("add", (kCount + 255) / 256, 256, a.stream, a.memory, 1u, kCount));
    OK(cuEventRecord(filled, a.stream));
    b.use();
    OK(cuStreamWaitEvent(b.stream, filled, 0));
    OK(cuMemcpyDtoDAsync(b.memory, a.memory, kCount * 4, b.stream));
    OK(b.kernels.launch("add", (kCount + 255) / 256, 256, b.stream, b.memory, 100u, kCount));
    OK(cuMemcpyPeerAsync(a.memory, a.device.context, b.memory, b.device.context, kCount * 4, b.stream));
    OK(cuEventRecord(counted, b.stream));
  }
  go = true;
  OK(cuEventSynchronize(counted));
  a.use();
  const auto values = download<uint32_t>(a.memory, kCount);
  for (unsigned i = 0; i < kCount; ++i) EXPECT(values[i] == 1 + i + kRounds * 101);
}

// Host functions of both devices run while streams wait for the other device, and their writes become visible
// in order.
SCENARIO(host_functions_between_devices) {
  const Side a(0, 4096), b(1, 4096);
  unsigned* pinned = nullptr;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), 4096));
  CUstream second = nullptr;
  CUevent one = nullptr, two = nullptr, three = nullptr;
  b.use();
  OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&two, CU_EVENT_DISABLE_TIMING));
  a.use();
  OK(cuEventCreate(&one, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&three, CU_EVENT_DISABLE_TIMING));
  for (unsigned round = 0; round < 10; ++round) {
    pinned[0] = 0;
    const auto add_one = [](void* user) { ++*static_cast<unsigned*>(user); };
    // b.stream waits for a.stream, which waits for b's second stream, whose host function must run meanwhile.
    b.use();
    OK(cuLaunchHostFunc(second, add_one, pinned));
    OK(cuEventRecord(two, second));
    a.use();
    OK(cuStreamWaitEvent(a.stream, two, 0));
    OK(cuMemcpyHtoDAsync(a.memory, pinned, 4, a.stream));
    OK(a.kernels.launch("add", 1, 1, a.stream, a.memory, 10u, 1u));
    OK(cuEventRecord(one, a.stream));
    b.use();
    OK(cuStreamWaitEvent(b.stream, one, 0));
    OK(cuMemcpyDtoDAsync(b.memory, a.memory, 4, b.stream));
    OK(cuMemcpyDtoHAsync(pinned, b.memory, 4, b.stream));
    OK(cuLaunchHostFunc(b.stream, add_one, pinned));
    OK(cuStreamSynchronize(b.stream));
    EXPECT(pinned[0] == 12);
  }
  OK(cuMemFreeHost(pinned));
}

// A wait refers to the event's last record before the wait, even if the event is recorded again or destroyed.
SCENARIO(events_between_devices) {
  const Side a(0, 4096), b(1, 4096);
  CUevent event = nullptr;
  a.use();
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  b.use();
  OK(cuStreamWaitEvent(b.stream, event, 0));  // never recorded: no wait
  OK(cuStreamSynchronize(b.stream));
  std::atomic<bool> go{false};
  const auto wait = [](void* user) {
    while (!static_cast<std::atomic<bool>*>(user)->load()) std::this_thread::yield();
  };
  a.use();
  OK(cuEventRecord(event, a.stream));
  b.use();
  OK(cuStreamWaitEvent(b.stream, event, 0));
  a.use();
  OK(cuLaunchHostFunc(a.stream, wait, &go));
  OK(cuEventRecord(event, a.stream));
  b.use();
  OK(cuStreamSynchronize(b.stream));  // waits for the first record only
  OK(cuStreamWaitEvent(b.stream, event, 0));
  OK(cuEventDestroy(event));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(b.stream));
  go = true;
  OK(cuStreamSynchronize(b.stream));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamWaitEvent(b.stream, event, 0));
  // A context can be destroyed while streams of the other device wait for its events.
  const CUcontext passing = create_context(0);
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventRecord(event, stream));
  b.use();
  OK(cuStreamWaitEvent(b.stream, event, 0));
  OK(cuCtxDestroy(passing));
  OK(cuStreamSynchronize(b.stream));
}

#if CUDA_VERSION >= 12000
// A library is loaded once for all devices.
SCENARIO(a_library_on_two_devices) {
  const Side sides[] = {Side(0, 4096), Side(1, 4096)};
  CUlibrary library = nullptr;
  OK(cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  OK(cuLibraryGetKernel(&kernel, library, "fill"));
  unsigned value = 5, count = 16;
  for (const Side& side : sides) {
    side.use();
    CUdeviceptr memory = side.memory, counter = 0;
    void* parameters[] = {&memory, &value, &count};
    CUfunction function = nullptr;
    OK(cuKernelGetFunction(&function, kernel));
    for (const CUfunction launched : {function, reinterpret_cast<CUfunction>(kernel)}) {
      OK(cuMemsetD8(memory, 0, 64));
      OK(cuLaunchKernel(launched, 1, 1, 1, 16, 1, 1, 0, nullptr, parameters, nullptr));
      EXPECT(download<uint32_t>(memory, 16)[15] == 20);
    }
    // Each device has its own copies of the variables.
    size_t bytes = 0;
    OK(cuLibraryGetGlobal(&counter, &bytes, library, "counter"));
    EXPECT(bytes == 4 && download<uint32_t>(counter, 1)[0] == 7);
    OK(cuMemsetD32(counter, 100u + static_cast<unsigned>(side.device.device), 1));
    int threads = 0;
    OK(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, side.device.device));
    EXPECT(threads > 0);
  }
  for (const Side& side : sides) {
    const Side& other = &side == sides ? sides[1] : sides[0];
    side.use();
    CUdeviceptr counter = 0;
    OK(cuLibraryGetGlobal(&counter, nullptr, library, "counter"));
    EXPECT(download<uint32_t>(counter, 1)[0] == 100u + static_cast<unsigned>(side.device.device));
    other.use();  // the address identifies the device, whichever context is current
    EXPECT(download<uint32_t>(counter, 1)[0] == 100u + static_cast<unsigned>(side.device.device));
  }
  OK(cuLibraryUnload(library));
  // No variable may overlap with the other device's memory.
  for (const Side& side : sides) {
    (&side == sides ? sides[1] : sides[0]).use();
    OK(cuMemFree(side.memory));
  }
}
#endif

SCENARIO(threads_on_two_devices) {
  constexpr size_t kBytes = 300'000;
  OK(cuInit(0));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      const Side here(thread % 2, kBytes), there(1 - thread % 2, kBytes);
      for (uint32_t round = 0; round < 15; ++round) {
        const auto data = pattern(kBytes, round * 10 + static_cast<uint32_t>(thread));
        here.use();
        put(here.memory, data);
        OK(cuMemcpyDtoDAsync(there.memory, here.memory, kBytes, round % 2 ? here.stream : there.stream));
        OK(cuStreamSynchronize(round % 2 ? here.stream : there.stream));
        expect_at(there.memory, data);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

SCENARIO(list_devices) {
  int count = 0;
  OK(cuInit(0));
  OK(cuDeviceGetCount(&count));
  for (int i = 0; i < count; ++i) {
    CUuuid uuid;
    OK(cuDeviceGetUuid(&uuid, i));
    std::printf("GPU-");
    for (int byte = 0; byte < 16; ++byte) {
      std::printf("%s%02x", byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-" : "",
                  static_cast<unsigned char>(uuid.bytes[byte]));
    }
    std::printf("\n");
  }
}

// The server of device 0 fails while device 0 is busy and device 1 waits for it; device 1 remains usable.
SCENARIO(one_of_two_fails) {
  constexpr size_t kBytes = size_t{32} << 20;
  const Side lost(0, kBytes), kept(1, kBytes);
  lost.use();
  CUevent never = nullptr;
  OK(cuEventCreate(&never, CU_EVENT_DISABLE_TIMING));
  OK(cuMemsetD8(lost.memory, 0, kBytes));
  OK(cuCtxSynchronize());
  OK(lost.kernels.launch("burn_forever", 1, 1, lost.stream, lost.memory));
  OK(cuEventRecord(never, lost.stream));
  kept.use();
  OK(cuStreamWaitEvent(kept.stream, never, 0));
  OK(cuMemcpyDtoDAsync(kept.memory, lost.memory, kBytes, kept.stream));
  CUstream other = nullptr;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  std::printf("working\n");
  std::fflush(stdout);
  lost.use();
  std::printf("there: %s", name_of(cuStreamSynchronize(lost.stream)));
  CUdeviceptr memory = 0;
  std::printf(" %s\n", name_of(cuMemAlloc(&memory, 64)));
  kept.use();
  std::printf("here, for what waited: %s\n", name_of(cuStreamSynchronize(kept.stream)));
  std::printf("across: %s %s\n", name_of(cuMemcpyDtoD(kept.memory, lost.memory, 64)),
              name_of(cuMemcpyPeerAsync(kept.memory, kept.device.context, lost.memory, lost.device.context,
                                        64, kept.stream)));
  std::printf("an event: %s\n", name_of(cuStreamWaitEvent(kept.stream, never, 0)));
  for (const CUstream stream : {kept.stream, other}) {
    OK(kept.kernels.launch("fill", 16, 256, stream, kept.memory, 3u, 4096u));
    OK(cuStreamSynchronize(stream));
    EXPECT(download<uint32_t>(kept.memory, 4096)[4095] == 3 + 4095);
  }
  OK(cuCtxSynchronize());
  std::printf("here: all is well\n");
}
