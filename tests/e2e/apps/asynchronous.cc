// Calls that must not wait for the server: tests compare the round trips with and without rounds.
#include "tests/e2e/apps/scenario.h"

using namespace app;

SCENARIO(asynchronous_calls) {
  Device device;
  Kernels kernels;
  const unsigned rounds = static_cast<unsigned>(std::stoul(arguments.at(0)));
  constexpr size_t kBytes = 200'000;
  CUstream stream = nullptr;
  // Streams that do not wait for each other share no memory.
  CUdeviceptr values = 0, copy = 0, values_of_null = 0, values_of_other = 0;
  uint8_t *upload = nullptr, *download = nullptr;
  std::vector<uint8_t> pageable(kBytes);
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (CUdeviceptr* const one : {&values, &copy, &values_of_null, &values_of_other})
    OK(cuMemAlloc(one, kBytes));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&upload), kBytes));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&download), kBytes));
  const CUfunction add = kernels.function("add");
  const auto set_again = [&] {
    OK(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
#if CUDA_VERSION >= 12000
    CUtensorMap map;
    const cuuint64_t sizes[] = {64, 64}, strides[] = {256};
    const cuuint32_t box[] = {16, 16}, steps[] = {1, 1};
    OK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, reinterpret_cast<void*>(values),
                              sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                              CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
#endif
  };
  set_again();
  unsigned value = 1, count = 1000;
  void* parameters[] = {&values, &value, &count};
  // Freed memory is reused by the same stream, and by another stream after an event.
  constexpr size_t kLarge = 64u << 20;
  CUstream second = nullptr;
  CUevent freed = nullptr;
  OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&freed, CU_EVENT_DISABLE_TIMING));
  CUdeviceptr small = 0, large = 0;
  OK(cuMemAllocAsync(&small, 1000, stream));
  OK(cuMemAllocAsync(&large, kLarge, stream));
  const auto pass_on = [&](CUstream from, CUstream to) {
    OK(cuMemFreeAsync(large, from));
    OK(cuEventRecord(freed, from));
    OK(cuStreamWaitEvent(to, freed, 0));
    const CUdeviceptr before = large;
    OK(cuMemAllocAsync(&large, kLarge, to));
    EXPECT(large == before);
    OK(cuMemsetD8Async(large, 1, 100, to));
  };
  int blocks = 0, peer = 0;
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 128, 0));
  OK(cuDeviceCanAccessPeer(&peer, device.device, device.device));
  OK(cuCtxSynchronize());
  for (unsigned round = 0; round < rounds; ++round) {
    set_again();
    OK(cuLaunchKernel(add, 4, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
    OK(cuMemcpyHtoDAsync(values, pageable.data(), kBytes, stream));
    OK(cuMemcpyHtoD(values_of_null, pageable.data(), 1000));
    OK(cuMemcpyHtoDAsync(copy, upload, kBytes, stream));
    OK(cuMemcpyDtoDAsync(copy, values, kBytes, stream));
    OK(cuMemcpyDtoHAsync(download, copy, kBytes, stream));
    OK(cuMemsetD8Async(values, 3, kBytes, stream));
    OK(cuMemsetD32(values_of_null, 3, kBytes / 4));
    CUevent event = nullptr;
    OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(nullptr, event, 0));
    OK(cuEventDestroy(event));
    CUstream other = nullptr;
    OK(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0));
    OK(cuMemsetD8Async(values_of_other, 4, kBytes, other));
    OK(cuStreamDestroy(other));
    CUdeviceptr memory = 0;
    OK(cuMemAlloc(&memory, 100));
    OK(cuMemFree(memory));
    OK(cuMemAllocAsync(&memory, 1000, stream));
    OK(cuMemFreeAsync(memory, stream));
    OK(cuMemFreeAsync(large, stream));
    OK(cuMemAllocAsync(&large, kLarge, stream));
    pass_on(stream, second);
    pass_on(second, stream);
    int number = 0;
    OK(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device.device));
    OK(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, kernels.function("add")));
    // The answers are cached until an attribute of a kernel is set.
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, add, 128, 0));
    EXPECT(number == blocks);
    OK(cuDeviceCanAccessPeer(&number, device.device, device.device));
    EXPECT(number == peer);
    CUcontext current = nullptr;
    OK(cuCtxGetCurrent(&current));
    OK(cuCtxPushCurrent(current));
    OK(cuCtxPopCurrent(&current));
    unsigned type = 0;
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, values));
    EXPECT(type == CU_MEMORYTYPE_DEVICE);
  }
  OK(cuCtxSynchronize());
}

SCENARIO(contexts_without_waiting) {
  OK(cuInit(0));
  const unsigned rounds = static_cast<unsigned>(std::stoul(arguments.at(0)));
  for (unsigned round = 0; round < rounds; ++round) {
    const CUcontext context = create_context(0);
    CUdeviceptr memory = 0;
    OK(cuMemAlloc(&memory, 1 << 20));
    OK(cuMemsetD8(memory, 1, 1 << 20));
    OK(cuCtxDestroy(context));
  }
  const CUcontext last = create_context(0);
  OK(cuCtxSynchronize());
  OK(cuCtxDestroy(last));
}

// XLA sets the parameters of all kernels of a graph before each launch.
SCENARIO(parameters_of_graph_nodes) {
  Device device;
  Kernels kernels;
  constexpr unsigned kItems = 256;
  const unsigned rounds = static_cast<unsigned>(std::stoul(arguments.at(0)));
  CUdeviceptr values[2] = {};
  for (CUdeviceptr& one : values) OK(cuMemAlloc(&one, kItems * 4));
  for (const CUdeviceptr one : values) OK(cuMemsetD32(one, 0, kItems));
  CUdeviceptr to = values[0];
  unsigned value = 1, count = kItems;
  void* parameters[] = {&to, &value, &count};
  CUDA_KERNEL_NODE_PARAMS node{};
  node.func = kernels.function("add");
  node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1;
  node.blockDimX = kItems;
  node.kernelParams = parameters;
  CUgraph graph = nullptr;
  CUgraphNode nodes[3] = {};
  CUgraphExec executable = nullptr;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuGraphCreate(&graph, 0));
  for (unsigned i = 0; i < 3; ++i)
    OK(cuGraphAddKernelNode(&nodes[i], graph, i != 0 ? &nodes[i - 1] : nullptr, i != 0, &node));
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuCtxSynchronize());
  for (unsigned round = 0; round < rounds; ++round) {
    to = values[round % 2];
    value = round;
    for (const CUgraphNode each : nodes) OK(cuGraphExecKernelNodeSetParams(executable, each, &node));
    OK(cuGraphLaunch(executable, stream));
  }
  OK(cuStreamSynchronize(stream));
  for (unsigned which = 0; which < 2; ++which) {
    unsigned sum = 0;
    for (unsigned round = which; round < rounds; round += 2) sum += 3 * round;
    EXPECT(download<unsigned>(values[which], kItems) == std::vector<unsigned>(kItems, sum));
  }
  // Another grid is checked by the device.
  node.blockDimX = 100'000;
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecKernelNodeSetParams(executable, nodes[0], &node));
  node.blockDimX = 1;
  OK(cuGraphExecKernelNodeSetParams(executable, nodes[0], &node));
  OK(cuGraphLaunch(executable, stream));
  OK(cuStreamSynchronize(stream));
}

// A synchronous copy returns only after earlier work of its stream, so the program can read host memory that
// this work wrote.
SCENARIO(synchronous_copies_behind_writers_of_host_memory) {
  Device device;
  Kernels kernels;
  constexpr unsigned kItems = 1 << 20;
  CUdeviceptr values = 0, other = 0, place = 0;
  unsigned* pinned = nullptr;
  OK(cuMemAlloc(&values, kItems * 4));
  OK(cuMemAlloc(&other, kItems * 4));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), kItems * 4));
  OK(cuMemHostGetDevicePointer(&place, pinned, 0));
  for (unsigned round = 1; round < 6; ++round) {
    const unsigned sent = round;
    pinned[kItems - 1] = 0;
    OK(kernels.launch("burn", 8, 64, nullptr, other, 100'000u));
    OK(kernels.launch("fill", kItems / 256, 256, nullptr, values, round, kItems));
    OK(cuMemcpyDtoHAsync(pinned, values, kItems * 4, nullptr));
    OK(cuMemcpyHtoD(other, &sent, 4));
    EXPECT(pinned[kItems - 1] == round + kItems - 1);
    OK(kernels.launch("burn", 8, 64, nullptr, other, 100'000u));
    OK(kernels.launch("fill", 1, 1, nullptr, place, round + 100, 1u));
    OK(cuMemcpyHtoD(values, pinned, 4));  // reads memory that the kernel writes
    EXPECT(pinned[0] == round + 100);
    EXPECT(download<unsigned>(values, 1)[0] == round + 100);
  }
  OK(cuMemFreeHost(pinned));
}

// The server refuses the graph launch, since a context that the graph uses is destroyed. Its host function
// must then not count as pending.
SCENARIO(copies_behind_a_refused_launch) {
  Device device;
  const unsigned copies = static_cast<unsigned>(std::stoul(arguments.at(0)));
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUgraphNode nodes[2] = {};
  OK(cuMemAlloc(&memory, 256));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUcontext other = create_context(device.device);
  OK(cuGraphCreate(&graph, 0));
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = memory;
  fill.value = 1;
  fill.elementSize = 1;
  fill.width = 256;
  fill.height = 1;
  bool called = false;
  const CUDA_HOST_NODE_PARAMS host{[](void* flag) { *static_cast<bool*>(flag) = true; }, &called};
  OK(cuGraphAddMemsetNode(&nodes[0], graph, nullptr, 0, &fill, other));
  OK(cuCtxSetCurrent(device.context));
  OK(cuGraphAddHostNode(&nodes[1], graph, nodes, 1, &host));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuCtxDestroy(other));
  OK(cuGraphLaunch(executable, stream));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
  const std::vector<uint8_t> data(256, 5);
  for (unsigned i = 0; i < copies; ++i) OK(cuMemcpyHtoD(memory, data.data(), data.size()));
  EXPECT(download<uint8_t>(memory, 256) == data);
  EXPECT(!called);
}
