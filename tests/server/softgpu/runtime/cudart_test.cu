// An ordinary program on NVIDIA's runtime, with everything that the runtime commonly does with the driver.
// Run it with softgpu's libcuda.so.1 in the library path; exits with 0 on success.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

__constant__ int step = 5;
__device__ int counter = 7;
__managed__ int managed = 3;

__global__ void fill(int* out, int value, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = value + i;
}
__global__ void advance() {
  counter += step;
  managed += step;
}
__global__ void speak(int who) {
  printf("thread %d of %d\n", threadIdx.x, who);
}
__global__ void stray(int* out) {
  out[1ll << 40] = 1;
}

namespace {

int failures = 0;

void check(bool ok, const char* what, int line) {
  if (ok) return;
  std::fprintf(stderr, "line %d: %s (%s)\n", line, what, cudaGetErrorString(cudaPeekAtLastError()));
  ++failures;
}
#define CHECK(condition) check(condition, #condition, __LINE__)
#define OK(call) check((call) == cudaSuccess, #call, __LINE__)

constexpr int kCount = 10000;

int read_counter() {
  int value = -1;
  OK(cudaMemcpyFromSymbol(&value, counter, sizeof value));
  return value;
}

void memory_and_symbols() {
  int* memory = nullptr;
  std::vector<int> host(kCount);
  OK(cudaMalloc(&memory, kCount * sizeof(int)));
  fill<<<(kCount + 255) / 256, 256>>>(memory, 10, kCount);
  OK(cudaMemcpy(host.data(), memory, kCount * sizeof(int), cudaMemcpyDefault));
  CHECK(host[0] == 10 && host[kCount - 1] == 10 + kCount - 1);
  cudaPointerAttributes attributes;
  OK(cudaPointerGetAttributes(&attributes, memory));
  CHECK(attributes.type == cudaMemoryTypeDevice);
  OK(cudaPointerGetAttributes(&attributes, host.data()));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  OK(cudaFree(memory));

  managed = 100;
  advance<<<1, 1>>>();
  OK(cudaDeviceSynchronize());
  CHECK(managed == 105);
  CHECK(read_counter() == 12);
  const int two = 2;
  OK(cudaMemcpyToSymbol(step, &two, sizeof two));
  advance<<<1, 1>>>();
  CHECK(read_counter() == 14);
}

void streams_and_graphs() {
  cudaStream_t stream;
  cudaEvent_t start, end;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaEventCreate(&start));
  OK(cudaEventCreate(&end));
  int *memory = nullptr, *pinned = nullptr;
  OK(cudaMallocAsync(&memory, kCount * sizeof(int), stream));
  OK(cudaMallocHost(&pinned, kCount * sizeof(int)));
  OK(cudaEventRecord(start, stream));
  fill<<<40, 256, 0, stream>>>(memory, 1, kCount);
  OK(cudaMemcpyAsync(pinned, memory, kCount * sizeof(int), cudaMemcpyDeviceToHost, stream));
  OK(cudaEventRecord(end, stream));
  OK(cudaEventSynchronize(end));
  CHECK(pinned[kCount - 1] == kCount);
  float milliseconds = -1;
  OK(cudaEventElapsedTime(&milliseconds, start, end));
  CHECK(milliseconds >= 0);

  cudaGraph_t graph;
  cudaGraphExec_t exec;
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  fill<<<40, 256, 0, stream>>>(memory, 2, kCount);
  OK(cudaMemcpyAsync(pinned, memory, kCount * sizeof(int), cudaMemcpyDeviceToHost, stream));
  OK(cudaStreamEndCapture(stream, &graph));
#if CUDART_VERSION >= 12000
  OK(cudaGraphInstantiate(&exec, graph, 0));
#else
  OK(cudaGraphInstantiate(&exec, graph, nullptr, nullptr, 0));
#endif
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  CHECK(pinned[0] == 2);
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  OK(cudaFreeAsync(memory, stream));
  OK(cudaStreamDestroy(stream));
  OK(cudaFreeHost(pinned));
}

void threads() {
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([t] {
      int* memory = nullptr;
      std::vector<int> host(kCount);
      OK(cudaMalloc(&memory, kCount * sizeof(int)));
      for (int i = 0; i < 20; ++i) {
        fill<<<40, 256, 0, cudaStreamPerThread>>>(memory, t * 100 + i, kCount);
        OK(cudaMemcpyAsync(host.data(), memory, kCount * sizeof(int), cudaMemcpyDeviceToHost,
                           cudaStreamPerThread));
        OK(cudaStreamSynchronize(cudaStreamPerThread));
        CHECK(host[1] == t * 100 + i + 1);
      }
      OK(cudaFree(memory));
    });
  }
  for (std::thread& thread : all) thread.join();
}

void limits_and_errors() {
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 0));
  CHECK(properties.warpSize == 32 && properties.maxThreadsPerBlock == 1024);
  int blocks = 0;
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fill, 256, 0));
  CHECK(blocks > 0);
  fill<<<1, 2048>>>(nullptr, 0, 0);
  CHECK(cudaGetLastError() != cudaSuccess);
  CHECK(cudaGetLastError() == cudaSuccess);
  void* much = nullptr;
  CHECK(cudaMalloc(&much, size_t{1} << 50) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
}

void reset_after_a_fault() {
  int* memory = nullptr;
  OK(cudaMalloc(&memory, 4096));
  stray<<<1, 1>>>(memory);
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  CHECK(cudaMalloc(&memory, 4096) == cudaErrorIllegalAddress);
  OK(cudaDeviceReset());
  OK(cudaMalloc(&memory, 4096));
  OK(cudaMemset(memory, 0, 4096));
  CHECK(read_counter() == 7);
}

}  // namespace

int main() {
  memory_and_symbols();
  streams_and_graphs();
  threads();
  limits_and_errors();
  reset_after_a_fault();
  speak<<<1, 2>>>(42);
  OK(cudaDeviceReset());
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
