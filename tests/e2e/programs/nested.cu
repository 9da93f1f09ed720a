// Dynamic parallelism: kernels that launch kernels recursively, in stream order, and in the tail stream.
#include <algorithm>

#include "check.h"

namespace {

__global__ void fill(int* out, int base) {
  out[base + threadIdx.x] = base + static_cast<int>(threadIdx.x);
}

__global__ void parent(int* out) {
  if (threadIdx.x < 4) fill<<<1, 8>>>(out, static_cast<int>(threadIdx.x) * 8);
}

void children() {
  Device<int> out(32);
  parent<<<1, 32>>>(out.get());
  const auto got = out.read();
  bool right = true;
  for (int n = 0; n < 32; ++n) right = right && got[n] == n;
  CHECK(right);
}

// A single thread sorts a short range, or partitions it and launches the kernel for both halves.
__global__ void quicksort(uint32_t* data, int low, int high) {
  if (high - low < 16) {
    for (int i = low + 1; i <= high; ++i) {
      const uint32_t value = data[i];
      int j = i - 1;
      for (; j >= low && data[j] > value; --j) data[j + 1] = data[j];
      data[j + 1] = value;
    }
    return;
  }
  const uint32_t pivot = data[(low + high) / 2];
  int i = low, j = high;
  while (i <= j) {
    while (data[i] < pivot) ++i;
    while (data[j] > pivot) --j;
    if (i <= j) {
      const uint32_t value = data[i];
      data[i++] = data[j];
      data[j--] = value;
    }
  }
  if (low < j) quicksort<<<1, 1>>>(data, low, j);
  if (i < high) quicksort<<<1, 1, 0, cudaStreamFireAndForget>>>(data, i, high);
}

void recursion() {
  auto host = numbers(2000, 11);
  Device<uint32_t> data(host);
  quicksort<<<1, 1>>>(data.get(), 0, 1999);
  std::sort(host.begin(), host.end());
  CHECK(data.read() == host);
}

__global__ void append(int* list, int value) {
  list[++list[0]] = value;
}

// Launches of one thread into one stream run in order; the tail stream comes last.
__global__ void in_order(int* list) {
  append<<<1, 1, 0, cudaStreamTailLaunch>>>(list, 100);
  for (int n = 1; n <= 5; ++n) append<<<1, 1>>>(list, n);
}

void order() {
  Device<int> list(16);
  in_order<<<1, 1>>>(list.get());
  append<<<1, 1>>>(list.get(), 200);  // after all grids that the previous one launched
  const auto got = list.read();
  const std::vector<int> expected{7, 1, 2, 3, 4, 5, 100, 200};
  CHECK(std::equal(expected.begin(), expected.end(), got.begin()));
}

// The child grid has its own block size and shared memory.
__global__ void sum_blocks(const uint32_t* in, uint32_t* sums) {
  extern __shared__ uint32_t values[];
  values[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = values[0];
}

__global__ void sum_all(const uint32_t* in, uint32_t* sums, uint32_t* sum) {
  sum_blocks<<<64, 128, 128 * 4>>>(in, sums);
  sum_blocks<<<1, 64, 64 * 4>>>(sums, sum);
}

void shapes() {
  const auto host = numbers(64 * 128, 12);
  Device<uint32_t> in(host), sums(64), sum(1);
  sum_all<<<1, 1>>>(in.get(), sums.get(), sum.get());
  uint32_t expected = 0;
  for (uint32_t value : host) expected += value;
  CHECK(sum.read()[0] == expected);
}

}  // namespace

int main() {
  const Case cases[] = {
      {"children", children}, {"recursion", recursion}, {"order", order}, {"shapes", shapes}};
  return run_cases(cases);
}
