// A CUDA runtime program built by nvcc, with valid calls and calls that must fail. Prints every result.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

__device__ int device_value = 5;
__constant__ int factors[4];

__global__ void multiply(int* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = i * factors[i % 4] + device_value;
}
__global__ void say(int number) {
  printf("kernel %d\n", number);
}
__global__ void store_at(int* address) {
  *address = 1;
}

static cudaError_t show(cudaError_t result, const char* call) {
  std::printf("%s -> %s\n", call, cudaGetErrorName(result));
  std::fflush(stdout);
  return result;
}
#define SHOW(call) show((call), #call)

// CUDA 12 changed the parameters of these two functions.
static cudaError_t instantiate(cudaGraphExec_t* exec, cudaGraph_t graph) {
#if CUDART_VERSION >= 12000
  return cudaGraphInstantiate(exec, graph, 0);
#else
  return cudaGraphInstantiate(exec, graph, nullptr, nullptr, 0);
#endif
}
static cudaError_t update(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResult* outcome) {
#if CUDART_VERSION >= 12000
  cudaGraphExecUpdateResultInfo info{};
  const cudaError_t result = cudaGraphExecUpdate(exec, graph, &info);
  *outcome = info.result;
  return result;
#else
  cudaGraphNode_t node = nullptr;
  return cudaGraphExecUpdate(exec, graph, &node, outcome);
#endif
}

// For conditions where both sides could be wrong in the same way.
static void require(bool holds, const char* what) {
  if (holds) return;
  std::printf("must hold: %s\n", what);
  std::exit(EXIT_FAILURE);
}
#define REQUIRE(condition) require((condition), #condition)

static unsigned checksum(const std::vector<int>& values) {
  unsigned sum = 0;
  for (const int value : values) sum = sum * 31 + static_cast<unsigned>(value);
  return sum;
}

static void use_symbols() {
  constexpr int kCount = 5000;
  const int given[4] = {3, 5, 7, 11};
  int back = 0, *values = nullptr;
  void* address = nullptr;
  size_t size = 0;
  std::vector<int> result(kCount);
  SHOW(cudaMemcpyToSymbol(factors, given, sizeof given));
  SHOW(cudaMemcpyToSymbol(factors, given, sizeof given + 4));
  SHOW(cudaMemcpyFromSymbol(&back, device_value, sizeof back));
  std::printf("device_value %d\n", back);
  back = 100;
  SHOW(cudaMemcpyToSymbolAsync(device_value, &back, sizeof back, 0, cudaMemcpyHostToDevice, 0));
  SHOW(cudaGetSymbolAddress(&address, device_value));
  SHOW(cudaGetSymbolSize(&size, factors));
  std::printf("factors %zu bytes\n", size);
  SHOW(cudaMalloc(&values, kCount * sizeof(int)));
  multiply<<<(kCount + 127) / 128, 128>>>(values, kCount);
  SHOW(cudaGetLastError());
  SHOW(cudaMemcpy(result.data(), values, kCount * sizeof(int), cudaMemcpyDeviceToHost));
  std::printf("checksum %08x\n", checksum(result));
  SHOW(cudaFree(values));
}

static void print_from_kernels() {
  for (int i = 0; i < 3; ++i) {
    std::printf("before %d\n", i);
    say<<<1, 1>>>(i);
    SHOW(cudaDeviceSynchronize());
  }
}

static void copy_shapes() {
  int* flat = nullptr;
  size_t pitch = 0;
  std::vector<int> source(60 * 40), result(60 * 40);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<int>(i * 7);
  SHOW(cudaMallocPitch(&flat, &pitch, 60 * 4, 40));
  SHOW(cudaMemcpy2D(flat, pitch, source.data(), 240, 240, 40, cudaMemcpyHostToDevice));
  SHOW(cudaMemset2D(flat, pitch, 1, 8, 40));
  SHOW(cudaMemcpy2D(result.data(), 240, flat, pitch, 240, 40, cudaMemcpyDeviceToHost));
  std::printf("checksum %08x\n", checksum(result));
  SHOW(cudaMemcpy2D(result.data(), 100, flat, pitch, 240, 40, cudaMemcpyDeviceToHost));
  SHOW(cudaFree(flat));
  cudaPitchedPtr box{};
  SHOW(cudaMalloc3D(&box, make_cudaExtent(64, 10, 5)));
  cudaMemcpy3DParms copy{};
  copy.srcPtr = make_cudaPitchedPtr(source.data(), 64, 64, 10);
  copy.dstPtr = box;
  copy.extent = make_cudaExtent(64, 10, 5);
  copy.kind = cudaMemcpyHostToDevice;
  SHOW(cudaMemcpy3D(&copy));
  std::vector<int> back(64 * 10 * 5 / 4);
  copy.srcPtr = box;
  copy.dstPtr = make_cudaPitchedPtr(back.data(), 64, 64, 10);
  copy.kind = cudaMemcpyDeviceToHost;
  SHOW(cudaMemcpy3D(&copy));
  std::printf("same %d\n", std::memcmp(back.data(), source.data(), back.size() * 4) == 0);
  SHOW(cudaFree(box.ptr));
}

static void use_streams() {
  constexpr int kCount = 10'000;
  cudaStream_t stream;
  cudaEvent_t start, stop;
  int *values, *pinned, called = 0;
  SHOW(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  SHOW(cudaEventCreate(&start));
  SHOW(cudaEventCreate(&stop));
  SHOW(cudaMallocAsync(&values, kCount * 4, stream));
  SHOW(cudaMallocHost(&pinned, kCount * 4));
  SHOW(cudaEventRecord(start, stream));
  multiply<<<(kCount + 255) / 256, 256, 0, stream>>>(values, kCount);
  SHOW(cudaMemcpyAsync(pinned, values, kCount * 4, cudaMemcpyDeviceToHost, stream));
  SHOW(cudaLaunchHostFunc(
      stream, [](void* user) { *static_cast<int*>(user) += 1; }, &called));
  SHOW(cudaEventRecord(stop, stream));
  SHOW(cudaFreeAsync(values, stream));
  SHOW(cudaEventSynchronize(stop));
  float milliseconds = -1;
  SHOW(cudaEventElapsedTime(&milliseconds, start, stop));
  std::printf("called %d, checksum %08x, timed %d\n", called, checksum({pinned, pinned + kCount}),
              milliseconds >= 0);
  SHOW(cudaStreamSynchronize(stream));  // the free may still be pending
  SHOW(cudaStreamQuery(stream));
  SHOW(cudaFreeHost(pinned));
  SHOW(cudaEventDestroy(start));
  SHOW(cudaEventDestroy(stop));
  SHOW(cudaStreamDestroy(stream));
  std::vector<std::thread> threads;
  std::vector<unsigned> sums(4);
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([number, &sums] {
      int* mine = nullptr;
      std::vector<int> result(1000);
      cudaMalloc(&mine, 4000);
      multiply<<<8, 128>>>(mine, 1000);
      cudaMemcpy(result.data(), mine, 4000, cudaMemcpyDeviceToHost);
      cudaFree(mine);
      sums[number] = checksum(result);
    });
  }
  for (auto& thread : threads) thread.join();
  std::printf("threads agree %d\n",
              sums[0] == sums[1] && sums[1] == sums[2] && sums[2] == sums[3] && sums[0] != 0);
}

static void CUDART_CB count_up(void* counter) {
  ++*static_cast<int*>(counter);
}

static void use_graphs() {
  constexpr int kCount = 3000;
  const int given[4] = {3, 5, 7, 11};
  int *values = nullptr, *pinned = nullptr, calls = 0;
  std::vector<int> pageable(kCount), up(kCount, 9);
  cudaStream_t stream = nullptr, other = nullptr;
  cudaEvent_t fork = nullptr, join = nullptr;
  cudaGraph_t graph = nullptr, made = nullptr, clone = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaStreamCaptureStatus status{};
  size_t count = 0;
  SHOW(cudaMemcpyToSymbol(factors, given, sizeof given));
  SHOW(cudaMalloc(&values, 2 * kCount * sizeof(int)));
  SHOW(cudaMallocHost(&pinned, kCount * sizeof(int)));
  SHOW(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  SHOW(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  SHOW(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  SHOW(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  SHOW(cudaDeviceSynchronize());
  SHOW(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  SHOW(cudaEventRecord(fork, stream));
  SHOW(cudaStreamWaitEvent(other, fork, 0));
  multiply<<<(kCount + 127) / 128, 128, 0, stream>>>(values, kCount);
  SHOW(cudaGetLastError());
  SHOW(cudaMemcpyAsync(values + kCount, up.data(), kCount * sizeof(int), cudaMemcpyHostToDevice, other));
  SHOW(cudaEventRecord(join, other));
  SHOW(cudaStreamWaitEvent(stream, join, 0));
  SHOW(cudaMemcpyAsync(pinned, values, kCount * sizeof(int), cudaMemcpyDeviceToHost, stream));
  SHOW(cudaMemcpyAsync(pageable.data(), values + kCount, kCount * sizeof(int), cudaMemcpyDefault, stream));
  SHOW(cudaLaunchHostFunc(stream, count_up, &calls));
  SHOW(cudaStreamIsCapturing(other, &status));
  std::printf("status %d\n", status);
  SHOW(cudaStreamEndCapture(stream, &graph));
  SHOW(cudaGraphGetNodes(graph, nullptr, &count));
  std::printf("%zu nodes\n", count);
  SHOW(instantiate(&exec, graph));
  for (int round = 1; round <= 3; ++round) {
    up.assign(kCount, round);
    SHOW(cudaGraphLaunch(exec, stream));
    SHOW(cudaStreamSynchronize(stream));
    std::printf("calls %d, %08x, %08x\n", calls, checksum({pinned, pinned + kCount}), checksum(pageable));
  }
  // Changes the kernel node of the executable graph.
  std::vector<cudaGraphNode_t> nodes(count);
  SHOW(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    SHOW(cudaGraphNodeGetType(node, &type));
    std::printf("type %d\n", type);
    if (type != cudaGraphNodeTypeKernel) continue;
    cudaKernelNodeParams kernel{};
    SHOW(cudaGraphKernelNodeGetParams(node, &kernel));
    std::printf("%u blocks of %u, %d\n", kernel.gridDim.x, kernel.blockDim.x,
                *static_cast<int*>(kernel.kernelParams[1]));
    int fewer = 100;
    void* parameters[] = {&values, &fewer};
    cudaKernelNodeParams changed = kernel;
    changed.func = reinterpret_cast<void*>(multiply);
    changed.kernelParams = parameters;
    changed.gridDim = dim3(1);
    SHOW(cudaMemsetAsync(values, 0, kCount * sizeof(int), stream));
    SHOW(cudaGraphExecKernelNodeSetParams(exec, node, &changed));
    SHOW(cudaGraphLaunch(exec, stream));
    SHOW(cudaStreamSynchronize(stream));
    std::printf("%d %d, %08x\n", pinned[99], pinned[100], checksum({pinned, pinned + kCount}));
  }
  SHOW(cudaGraphClone(&clone, graph));
  cudaGraphExecUpdateResult outcome{};
  SHOW(update(exec, clone, &outcome));
  std::printf("update %d\n", outcome);
  SHOW(cudaGraphLaunch(exec, stream));
  SHOW(cudaStreamSynchronize(stream));
  std::printf("calls %d, %08x\n", calls, checksum({pinned, pinned + kCount}));
  // A graph built by hand.
  SHOW(cudaGraphCreate(&made, 0));
  cudaGraphNode_t clear = nullptr, work = nullptr, out = nullptr, child = nullptr, host = nullptr;
  cudaMemsetParams zero{};
  zero.dst = values;
  zero.elementSize = 4;
  zero.width = kCount;
  zero.height = 1;
  zero.value = 77;
  SHOW(cudaGraphAddMemsetNode(&clear, made, nullptr, 0, &zero));
  int half = kCount / 2;
  void* parameters[] = {&values, &half};
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(multiply);
  kernel.gridDim = dim3((kCount + 127) / 128);
  kernel.blockDim = dim3(128);
  kernel.kernelParams = parameters;
  SHOW(cudaGraphAddKernelNode(&work, made, &clear, 1, &kernel));
  cudaKernelNodeParams told{};
  REQUIRE(SHOW(cudaGraphKernelNodeGetParams(work, &told)) == cudaSuccess);
  REQUIRE(told.func == kernel.func && told.blockDim.x == kernel.blockDim.x);
  REQUIRE(SHOW(cudaGraphKernelNodeSetParams(work, &told)) == cudaSuccess);
  SHOW(cudaGraphAddMemcpyNode1D(&out, made, &work, 1, pinned, values, kCount * sizeof(int),
                                cudaMemcpyDeviceToHost));
  cudaHostNodeParams call{count_up, &calls};
  SHOW(cudaGraphAddHostNode(&host, made, &out, 1, &call));
  SHOW(cudaGraphAddChildGraphNode(&child, made, &host, 1, graph));
  SHOW(update(exec, made, &outcome));
  std::printf("update %d\n", outcome);
  (void)cudaGetLastError();
  SHOW(cudaGraphExecDestroy(exec));
  SHOW(instantiate(&exec, made));
  SHOW(cudaGraphLaunch(exec, stream));
  SHOW(cudaStreamSynchronize(stream));
  std::printf("calls %d, %08x\n", calls, checksum({pinned, pinned + kCount}));
  SHOW(cudaGraphExecDestroy(exec));
  for (const cudaGraph_t gone : {graph, made, clone}) SHOW(cudaGraphDestroy(gone));
  // Calls that a capture does not allow.
  for (const cudaStreamCaptureMode mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    const bool unsafe = mode == cudaStreamCaptureModeThreadLocal;
    SHOW(cudaStreamBeginCapture(stream, mode));
    REQUIRE(SHOW(cudaFree(nullptr)) == (unsafe ? cudaErrorStreamCaptureUnsupported : cudaSuccess));
    REQUIRE(SHOW(cudaStreamEndCapture(stream, &graph)) ==
            (unsafe ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
    SHOW(cudaGetLastError());
    if (graph != nullptr) SHOW(cudaGraphDestroy(graph));
  }
  SHOW(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  SHOW(cudaStreamSynchronize(stream));
  SHOW(cudaStreamEndCapture(stream, &graph));
  (void)cudaGetLastError();
  SHOW(cudaStreamEndCapture(stream, &graph));
  (void)cudaGetLastError();
  SHOW(cudaFree(values));
  SHOW(cudaFreeHost(pinned));
  SHOW(cudaStreamDestroy(stream));
  SHOW(cudaStreamDestroy(other));
}

static void make_mistakes() {
  int *values = nullptr, host = 0;
  int number = 0;
  cudaStream_t none = reinterpret_cast<cudaStream_t>(0xdeadbee0);
  SHOW(cudaMalloc(&values, 0));
  SHOW(cudaMalloc(&values, size_t{1} << 50));
  SHOW(cudaGetLastError());
  SHOW(cudaGetLastError());
  SHOW(cudaMalloc(nullptr, 64));
  SHOW(cudaFree(nullptr));
  SHOW(cudaFree(&host));
  SHOW(cudaMemcpy(&host, reinterpret_cast<void*>(0x1000), 4, cudaMemcpyDeviceToHost));
  SHOW(cudaMemcpy(&host, &number, 4, static_cast<cudaMemcpyKind>(77)));
  SHOW(cudaMemcpy(&host, &number, 4, cudaMemcpyHostToHost));
  SHOW(cudaMemset(reinterpret_cast<void*>(0x1000), 0, 4));
  SHOW(cudaSetDevice(7));
  SHOW(cudaGetDevice(&number));
  SHOW(cudaStreamSynchronize(none));
  SHOW(cudaStreamDestroy(none));
  SHOW(cudaEventDestroy(nullptr));
  SHOW(cudaFreeHost(&host));
  SHOW(cudaHostUnregister(&host));
  (void)cudaGetLastError();
  multiply<<<1, 4096>>>(values, 1);
  SHOW(cudaGetLastError());
  multiply<<<0, 1>>>(values, 1);
  SHOW(cudaGetLastError());
  multiply<<<1, 1, 1 << 20>>>(values, 1);
  SHOW(cudaGetLastError());
  cudaFuncAttributes attributes{};
  SHOW(cudaFuncGetAttributes(&attributes, multiply));
  std::printf("threads %d constant %zu\n", attributes.maxThreadsPerBlock, attributes.constSizeBytes);
  SHOW(cudaFuncSetAttribute(multiply, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 30));
  SHOW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&number, multiply, 128, 0));
  std::printf("blocks %d\n", number);
  cudaPointerAttributes pointer{};
  SHOW(cudaPointerGetAttributes(&pointer, &host));
  std::printf("type %d\n", pointer.type);
  (void)cudaGetLastError();
}

__managed__ int managed_value = 41;
__managed__ int managed_values[5000] = {1, 2, 3};

__global__ void use_managed(int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i == 0) ++managed_value;
  if (i < count) managed_values[i] += i;
}

static void use_managed_memory() {
  constexpr int kCount = 5000;
  std::printf("managed variables %d %d %d\n", managed_value, managed_values[1], managed_values[3]);
  managed_value = 50;
  managed_values[3] = 7;
  use_managed<<<20, 256>>>(5000);
  SHOW(cudaDeviceSynchronize());
  std::printf("managed variables %d %d %d %d\n", managed_value, managed_values[1], managed_values[3],
              managed_values[4999]);
  int* values = nullptr;
  SHOW(cudaMallocManaged(&values, kCount * sizeof(int)));
  for (int i = 0; i < kCount; ++i) values[i] = i;
  multiply<<<(kCount + 127) / 128, 128>>>(values, kCount);
  SHOW(cudaDeviceSynchronize());
  std::printf("checksum %08x\n", checksum(std::vector<int>(values, values + kCount)));
  cudaPointerAttributes attributes{};
  SHOW(cudaPointerGetAttributes(&attributes, values));
  std::printf("type %d, device %d, its own address %d %d\n", attributes.type, attributes.device,
              attributes.devicePointer == values, attributes.hostPointer == values);
  SHOW(cudaMemset(values, 1, 64));
  SHOW(cudaMemcpy(values + 16, values, 64, cudaMemcpyDefault));
  SHOW(cudaDeviceSynchronize());
  std::printf("%x %x\n", values[31], values[32]);
  SHOW(cudaFree(values));
  int* mapped = nullptr;
  int* address = nullptr;
  SHOW(cudaHostAlloc(&mapped, kCount * sizeof(int), cudaHostAllocMapped));
  SHOW(cudaHostGetDevicePointer(&address, mapped, 0));
  for (int i = 0; i < kCount; ++i) mapped[i] = i;
  multiply<<<(kCount + 127) / 128, 128>>>(address, kCount);
  SHOW(cudaDeviceSynchronize());
  std::printf("checksum %08x\n", checksum(std::vector<int>(mapped, mapped + kCount)));
  SHOW(cudaFreeHost(mapped));
}

int main() {
  int devices = 0;
  SHOW(cudaGetDeviceCount(&devices));
  std::printf("%d device(s)\n", devices);
  use_symbols();
  print_from_kernels();
  copy_shapes();
  use_streams();
  use_graphs();
  use_managed_memory();
  make_mistakes();
  SHOW(cudaDeviceReset());
  use_symbols();  // a fresh module has the initial values
  use_managed_memory();
  SHOW(cudaDeviceReset());
  print_from_kernels();
  int* nowhere = nullptr;
  store_at<<<1, 1>>>(nowhere);
  SHOW(cudaDeviceSynchronize());
  SHOW(cudaGetLastError());
  SHOW(cudaMalloc(&nowhere, 64));
  SHOW(cudaDeviceReset());
  SHOW(cudaMalloc(&nowhere, 64));
  return EXIT_SUCCESS;
}
