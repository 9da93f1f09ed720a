// Device runtime calls of kernels, other than launches: queries, errors, streams and events, copies and
// fills, memory, launches with parameter buffers, and cooperative groups by handle.
#include <cstring>
#include <string>

#include "check.h"

namespace {

__global__ void __launch_bounds__(512) measured(int* out) {
  __shared__ int values[300];
  values[threadIdx.x % 300] = static_cast<int>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = values[0];
}

constexpr size_t kAttributeCount = 5, kLimitCount = 3;

struct Answers {
  int attributes[kAttributeCount], device, count, version, blocks;
  size_t limits[kLimitCount];
  cudaFuncAttributes kernel;
  cudaError_t error;
};

template <class Answers>
__host__ __device__ cudaError_t ask(Answers* to) {
  constexpr cudaDeviceAttr kAttributes[kAttributeCount] = {
      cudaDevAttrMaxThreadsPerBlock, cudaDevAttrMultiProcessorCount, cudaDevAttrComputeCapabilityMajor,
      cudaDevAttrMaxSharedMemoryPerBlock, cudaDevAttrWarpSize};
  constexpr cudaLimit kLimits[kLimitCount] = {cudaLimitStackSize, cudaLimitMallocHeapSize,
                                              cudaLimitDevRuntimePendingLaunchCount};
  cudaError_t error = cudaGetDevice(&to->device);
  if (error == cudaSuccess) error = cudaGetDeviceCount(&to->count);
  for (size_t i = 0; i < kAttributeCount && error == cudaSuccess; ++i)
    error = cudaDeviceGetAttribute(&to->attributes[i], kAttributes[i], to->device);
  for (size_t i = 0; i < kLimitCount && error == cudaSuccess; ++i)
    error = cudaDeviceGetLimit(&to->limits[i], kLimits[i]);
  if (error == cudaSuccess) error = cudaRuntimeGetVersion(&to->version);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&to->kernel, measured);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&to->blocks, measured, 256, 1000);
  return error;
}

__global__ void questions_in_kernel(Answers* to) {
  to->error = ask(to);
}

// Queries in a kernel return the same values as on the host.
void questions() {
  Device<Answers> out(1);
  questions_in_kernel<<<1, 1>>>(out.get());
  const Answers got = out.read()[0];
  Answers expected;
  OK(ask(&expected));
  CHECK(got.error == cudaSuccess);
  CHECK(std::memcmp(got.attributes, expected.attributes, sizeof got.attributes) == 0);
  CHECK(std::memcmp(got.limits, expected.limits, sizeof got.limits) == 0);
  CHECK(got.device == expected.device && got.count == expected.count);
  CHECK(got.version == expected.version ||
        CUDART_VERSION < 13000);  // softgpu's device runtime has CUDA 13.0's version
  CHECK(got.blocks == expected.blocks && got.blocks > 0);
  CHECK(got.kernel.sharedSizeBytes == 1200 && got.kernel.maxThreadsPerBlock == 512);
  CHECK(got.kernel.numRegs == expected.kernel.numRegs &&
        got.kernel.binaryVersion == expected.kernel.binaryVersion);
}

__global__ void nothing() {}

__global__ void errors_in_kernel(int* codes, char* texts) {
  const unsigned i = threadIdx.x;
  int value = 0;
  codes[i * 4] = cudaGetLastError();
  if (i % 2 == 1) cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 99);
  if (i == 2) nothing<<<1, 2048>>>();  // too many threads per block
  if (i == 4) nothing<<<1, 1, 0, reinterpret_cast<cudaStream_t>(0x7777)>>>();
  codes[i * 4 + 1] = cudaPeekAtLastError();
  codes[i * 4 + 2] = cudaGetLastError();
  codes[i * 4 + 3] = cudaGetLastError();
  cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 99);  // an error that is never queried
  if (i == 0) {
    int at = 0;
    for (const char* text :
         {cudaGetErrorName(cudaErrorIllegalAddress), cudaGetErrorString(cudaErrorIllegalAddress)})
      while ((texts[at++] = *text++) != 0) {
      }
  }
}

// Each thread has its own last error, and continues after it.
void errors() {
  constexpr unsigned kThreads = 8;
  Device<int> codes(kThreads * 4);
  Device<char> texts(200);
  errors_in_kernel<<<1, kThreads>>>(codes.get(), texts.get());
  const auto got = codes.read();
  for (unsigned i = 0; i < kThreads; ++i) {
    const int expected = i % 2 == 1 ? cudaErrorInvalidDevice
                         : i == 2   ? cudaErrorInvalidConfiguration
                         : i == 4   ? cudaErrorInvalidResourceHandle
                                    : cudaSuccess;
    CHECK(got[i * 4] == cudaSuccess && got[i * 4 + 3] == cudaSuccess);
    CHECK(got[i * 4 + 1] == expected && got[i * 4 + 2] == expected);
  }
  const auto said = texts.read();
  CHECK(std::string(said.data()) == "cudaErrorIllegalAddress");
  CHECK(std::string(said.data() + sizeof "cudaErrorIllegalAddress") ==
        cudaGetErrorString(cudaErrorIllegalAddress));
}

__global__ void deeper(int* depth, int level) {
  *depth = level;
  deeper<<<1, 1>>>(depth, level + 1);
  if (cudaGetLastError() == cudaErrorLaunchMaxDepthExceeded) depth[1] = level;
}

__global__ void too_many(int* out, int* memory) {
  out[1] = 0;
  for (out[0] = 0; out[1] == cudaSuccess && out[0] < 10000; ++out[0])
    out[1] = cudaMemsetAsync(memory, 1, 4, cudaStreamFireAndForget);
}

void bounds() {
  Device<int> depth(2), out(2), memory(1);
  deeper<<<1, 1>>>(depth.get(), 0);
  CHECK(depth.read() == std::vector<int>({24, 24}));
  too_many<<<1, 1>>>(out.get(), memory.get());
  CHECK(out.read() == std::vector<int>({2049, cudaErrorLaunchPendingCountExceeded}));
  CHECK(memory.read()[0] == 0x01010101);
}

__global__ void append(int* list, int value) {
  list[++list[0]] = value;
}

__global__ void streams_in_kernel(int* list, int* codes) {
  cudaStream_t first, second;
  cudaEvent_t event;
  int n = 0;
  codes[n++] = cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
  codes[n++] = cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  codes[n++] = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  append<<<1, 1, 0, first>>>(list, 1);
  codes[n++] = cudaEventRecord(event, first);
  codes[n++] = cudaStreamWaitEvent(second, event, 0);
  append<<<1, 1, 0, second>>>(list, 2);
  codes[n++] = cudaEventDestroy(event);
  codes[n++] = cudaStreamDestroy(first);
  codes[n++] = cudaGetLastError();
  // Errors of invalid calls.
  codes[n++] = cudaStreamCreateWithFlags(&first, cudaStreamDefault);
  codes[n++] = cudaEventCreateWithFlags(&event, cudaEventDefault);
  codes[n++] = cudaEventRecord(event, second);
  codes[n++] = cudaStreamDestroy(first);
  codes[n++] = cudaStreamDestroy(second);
  codes[n++] = cudaStreamDestroy(second);
}

void streams() {
  Device<int> list(8), codes(14);
  streams_in_kernel<<<1, 1>>>(list.get(), codes.get());
  CHECK(list.read() == std::vector<int>({2, 1, 2, 0, 0, 0, 0, 0}));
  CHECK(codes.read() ==
        std::vector<int>({0, 0, 0, 0, 0, 0, 0, 0, cudaErrorInvalidValue, cudaErrorInvalidValue,
                          cudaErrorInvalidResourceHandle, cudaErrorInvalidResourceHandle, 0,
                          cudaErrorInvalidResourceHandle}));
}

__global__ void double_all(uint32_t* data, size_t count) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) data[i] *= 2;
}

// A fill, a copy and a kernel, each on the result of the previous one, and a copy in the tail stream.
__global__ void copies_in_kernel(uint32_t* a, uint32_t* b, uint32_t* late, size_t count, int* codes) {
  codes[0] = cudaMemcpyAsync(late, b, count * 4, cudaMemcpyDeviceToDevice, cudaStreamTailLaunch);
  codes[1] = cudaMemsetAsync(b, 0x11, count * 4, 0);
  codes[2] = cudaMemcpyAsync(b, a, count * 2, cudaMemcpyDefault, 0);
  double_all<<<4, 64>>>(b, count);
  codes[3] = cudaMemcpyAsync(b, a, count, cudaMemcpyHostToDevice, 0);
  codes[4] = cudaMemcpyAsync(nullptr, a, count, cudaMemcpyDefault, 0);
}

void copies() {
  constexpr size_t kCount = 1'000'001;  // several chunks, the last one partial
  const auto host = numbers(kCount, 3);
  Device<uint32_t> a(host), b(kCount), late(kCount);
  Device<int> codes(5);
  copies_in_kernel<<<1, 1>>>(a.get(), b.get(), late.get(), kCount, codes.get());
  std::vector<uint32_t> expected(kCount, 0x11111111);
  std::memcpy(expected.data(), host.data(), kCount * 2);
  for (uint32_t& value : expected) value *= 2;
  CHECK(b.read() == expected);
  CHECK(late.read() == expected);
  CHECK(codes.read() == std::vector<int>({0, 0, 0, cudaErrorInvalidMemcpyDirection, cudaErrorInvalidValue}));
}

constexpr size_t kWidth = 24, kHeight = 10, kDepth = 6, kPitch = 32, kBytes = kPitch * kHeight * kDepth;

__global__ void boxes_in_kernel(unsigned char* a, unsigned char* b, unsigned char* c, int* codes) {
  codes[0] = cudaMemcpy2DAsync(b + 5, kPitch, a, kPitch * 2, 20, kHeight, cudaMemcpyDeviceToDevice, 0);
  codes[1] = cudaMemset2DAsync(b + 3, kPitch, 0xAB, 2, 4, 0);
  cudaMemcpy3DParms p = {};
  p.srcPtr = cudaPitchedPtr{a, kPitch, kWidth, kHeight};
  p.dstPtr = cudaPitchedPtr{c, kPitch, kWidth, kHeight};
  p.srcPos = cudaPos{1, 2, 3};
  p.dstPos = cudaPos{4, 0, 1};
  p.extent = cudaExtent{7, 5, 2};
  p.kind = cudaMemcpyDeviceToDevice;
  codes[2] = cudaMemcpy3DAsync(&p, 0);
  codes[3] = cudaMemset3DAsync(cudaPitchedPtr{c + 16, kPitch, kWidth, kHeight}, 0xCD, cudaExtent{3, 2, 6}, 0);
  codes[4] = cudaMemcpy2DAsync(b, 10, a, kPitch, 20, kHeight, cudaMemcpyDeviceToDevice, 0);
  codes[5] = cudaMemset2DAsync(b, 1, 1, 0, 10, 0);  // empty
}

void boxes() {
  std::vector<unsigned char> a(kBytes);
  for (size_t i = 0; i < kBytes; ++i) a[i] = static_cast<unsigned char>(i * 7 + i / 256 + 1);
  Device<unsigned char> in(a), b(kBytes), c(kBytes);
  Device<int> codes(6);
  boxes_in_kernel<<<1, 1>>>(in.get(), b.get(), c.get(), codes.get());
  std::vector<unsigned char> b_expected(kBytes), c_expected(kBytes);
  for (size_t y = 0; y < kHeight; ++y) std::memcpy(&b_expected[5 + y * kPitch], &a[y * kPitch * 2], 20);
  for (size_t y = 0; y < 4; ++y) std::memset(&b_expected[3 + y * kPitch], 0xAB, 2);
  for (size_t z = 0; z < 2; ++z)
    for (size_t y = 0; y < 5; ++y)
      std::memcpy(&c_expected[((z + 1) * kHeight + y) * kPitch + 4],
                  &a[((z + 3) * kHeight + y + 2) * kPitch + 1], 7);
  for (size_t z = 0; z < 6; ++z)
    for (size_t y = 0; y < 2; ++y) std::memset(&c_expected[16 + (z * kHeight + y) * kPitch], 0xCD, 3);
  CHECK(b.read() == b_expected);
  CHECK(c.read() == c_expected);
  CHECK(codes.read() == std::vector<int>({0, 0, 0, 0, cudaErrorInvalidPitchValue, 0}));
}

__global__ void sum_and_free(int* values, int count, int* sum) {
  for (int i = 0; i < count; ++i) *sum += values[i];
  cudaFree(values);
}

__global__ void memory_in_kernel(int* out) {
  int* values = nullptr;
  out[1] = cudaMalloc(&values, 100 * sizeof(int));
  for (int i = 0; i < 100; ++i) values[i] = i;
  sum_and_free<<<1, 1>>>(values, 100, out);
  void* none;
  out[2] = cudaMalloc(&none, size_t{1} << 40);
  out[3] = cudaGetLastError();
}

void memory() {
  Device<int> out(4);
  for (int i = 0; i < 50; ++i) memory_in_kernel<<<1, 1>>>(out.get());
  CHECK(out.read() == std::vector<int>({50 * 4950, 0, cudaErrorMemoryAllocation, cudaErrorMemoryAllocation}));
}

// Launches like older generated code, which passes kernel and shape after the parameter buffer was filled.
__global__ void by_hand(int* list, int* codes) {
  struct Parameters {
    int* list;
    int value;
  };
  auto* const parameters =
      static_cast<Parameters*>(cudaGetParameterBuffer(alignof(Parameters), sizeof(Parameters)));
  *parameters = {list, 42};
  codes[0] = cudaLaunchDevice(reinterpret_cast<void*>(append), parameters, dim3(1), dim3(1), 0, nullptr);
  codes[1] = cudaLaunchDevice(reinterpret_cast<void*>(append), parameters, dim3(1), dim3(1), 0,
                              nullptr);  // the buffer was used already
}

void old_launches() {
  Device<int> list(4), codes(2);
  by_hand<<<1, 1>>>(list.get(), codes.get());
  CHECK(list.read() == std::vector<int>({1, 42, 0, 0}));
  CHECK(codes.read() == std::vector<int>({0, cudaErrorInvalidValue}));
}

// Each row needs the complete previous row.
__global__ void group_in_kernel(int* rows, int count, unsigned* facts) {
  const unsigned long long grid = cudaCGGetIntrinsicHandle(cudaCGScopeGrid);
  unsigned threads = 0, grids = 0, rank = 0, of_grid = 7;
  cudaCGGetSize(&threads, &grids, grid);
  cudaCGGetRank(&rank, &of_grid, grid);
  for (int row = 1; row < count; ++row) {
    rows[row * threads + rank] = rows[(row - 1) * threads + (threads - rank - 1)] + 1;
    if (cudaCGSynchronizeGrid(grid, 0) != cudaSuccess) return;
  }
  if (rank == threads - 1) facts[0] = threads, facts[1] = grids, facts[2] = of_grid;
}

__global__ void no_group(unsigned* facts) {
  facts[3] = cudaCGGetIntrinsicHandle(cudaCGScopeGrid) == 0;
  facts[4] = cudaCGSynchronize(0, 0);
}

void groups() {
  constexpr int kRows = 20, kThreads = 2 * 96;
  std::vector<int> host(kRows * kThreads);
  for (int i = 0; i < kThreads; ++i) host[i] = i * 3;
  Device<int> rows(host);
  Device<unsigned> facts(5);
  int count = kRows;
  int* memory = rows.get();
  unsigned* out = facts.get();
  void* parameters[] = {&memory, &count, &out};
  OK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(group_in_kernel), dim3(2), dim3(32, 3), parameters,
                                 0, nullptr));
  no_group<<<1, 1>>>(out);
  for (int row = 1; row < kRows; ++row)
    for (int i = 0; i < kThreads; ++i)
      host[row * kThreads + i] = host[(row - 1) * kThreads + kThreads - i - 1] + 1;
  CHECK(rows.read() == host);
  CHECK(facts.read() == std::vector<unsigned>({kThreads, 1, 0, 1, cudaErrorInvalidValue}));
}

__global__ void wrong_fill(char* memory) {
  cudaMemsetAsync(memory, 1, 100, 0);
}

// Runs last, since it leaves the context in an error state.
bool faults() {
  wrong_fill<<<1, 1>>>(reinterpret_cast<char*>(0x1234));
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  return failures == 0;
}

}  // namespace

int main() {
  const Case cases[] = {
      {"questions", questions}, {"errors", errors}, {"bounds", bounds}, {"streams", streams},
      {"copies", copies},       {"boxes", boxes},   {"memory", memory}, {"launches by hand", old_launches},
      {"groups", groups}};
  return run_cases(cases) == 0 && faults() ? 0 : 1;
}
