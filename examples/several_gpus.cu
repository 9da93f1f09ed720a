// Uses all visible GPUs: each generates a block of numbers, the blocks travel around the ring of GPUs by peer
// copies, and each GPU sums all of them.
#include <vector>

#include "common/example.h"

__global__ void make(uint32_t* block, uint32_t first, uint32_t count) {
  const uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) block[at] = (first + at) * 2654435761u >> 7;
}

__global__ void add(unsigned long long* sum, const uint32_t* block, uint32_t count) {
  const uint32_t stride = gridDim.x * blockDim.x;
  unsigned long long mine = 0;
  for (uint32_t at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += stride) mine += block[at];
  atomicAdd(sum, mine);
}

struct Gpu {
  uint32_t *block, *incoming;
  unsigned long long* sum;
};

int main(int argc, char** argv) {
  long size = 1'000'000;
  parse_options(argc, argv, "Sums numbers on all GPUs, with peer copies between them.",
                {{"--size", "numbers for each GPU", &size, 1, 1 << 28}});
  const uint32_t count = static_cast<uint32_t>(size), threads = 256;
  const size_t bytes = count * sizeof(uint32_t);

  print_device();
  int gpus = 0;
  CUDA_CHECK(cudaGetDeviceCount(&gpus));
  std::printf("GPUs     %d\n", gpus);
  Stopwatch watch;
  std::vector<Gpu> all(gpus);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    CUDA_CHECK(cudaSetDevice(gpu));
    CUDA_CHECK(cudaMalloc(&all[gpu].block, bytes));
    CUDA_CHECK(cudaMalloc(&all[gpu].incoming, bytes));
    CUDA_CHECK(cudaMalloc(&all[gpu].sum, sizeof *all[gpu].sum));
    CUDA_CHECK(cudaMemset(all[gpu].sum, 0, sizeof *all[gpu].sum));
    make<<<(count + threads - 1) / threads, threads>>>(all[gpu].block, static_cast<uint32_t>(gpu) * count,
                                                       count);
    CUDA_CHECK(cudaGetLastError());
  }
  for (int round = 0; round < gpus; ++round) {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      CUDA_CHECK(cudaSetDevice(gpu));
      add<<<16, threads>>>(all[gpu].sum, all[gpu].block, count);
      CUDA_CHECK(cudaGetLastError());
      CUDA_CHECK(cudaDeviceSynchronize());
    }
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const int next = (gpu + 1) % gpus;
      CUDA_CHECK(cudaMemcpyPeer(all[next].incoming, next, all[gpu].block, gpu, bytes));
    }
    for (Gpu& gpu : all) std::swap(gpu.block, gpu.incoming);
  }
  std::vector<unsigned long long> sums(gpus);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    CUDA_CHECK(cudaSetDevice(gpu));
    CUDA_CHECK(cudaMemcpy(&sums[gpu], all[gpu].sum, sizeof sums[gpu], cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(all[gpu].block));
    CUDA_CHECK(cudaFree(all[gpu].incoming));
    CUDA_CHECK(cudaFree(all[gpu].sum));
  }
  const double milliseconds = watch.milliseconds();

  unsigned long long expected = 0;
  for (uint32_t at = 0; at < static_cast<uint32_t>(gpus) * count; ++at) expected += at * 2654435761u >> 7;
  bool passed = true;
  for (const unsigned long long sum : sums) passed &= sum == expected;
  std::printf("result   each GPU has the sum %llu\n", sums[0]);
  return finish(passed, milliseconds);
}
