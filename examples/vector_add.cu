// Adds two vectors: a minimal complete CUDA program.
#include <vector>

#include "common/example.h"

__global__ void vector_add(const float* a, const float* b, float* sum, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sum[i] = a[i] + b[i];
}

int main(int argc, char** argv) {
  long size = 1'000'000;
  parse_options(argc, argv, "Adds two vectors of floats.", {{"--size", "elements", &size}});
  const int count = static_cast<int>(size);
  const size_t bytes = count * sizeof(float);

  std::vector<float> a(count), b(count), sum(count);
  for (int i = 0; i < count; ++i) {
    a[i] = 0.5f * static_cast<float>(i % 1000);
    b[i] = 3.25f - static_cast<float>(i % 777);
  }

  print_device();
  Stopwatch watch;
  float *device_a, *device_b, *device_sum;
  CUDA_CHECK(cudaMalloc(&device_a, bytes));
  CUDA_CHECK(cudaMalloc(&device_b, bytes));
  CUDA_CHECK(cudaMalloc(&device_sum, bytes));
  CUDA_CHECK(cudaMemcpy(device_a, a.data(), bytes, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(device_b, b.data(), bytes, cudaMemcpyHostToDevice));

  const int threads = 256;
  vector_add<<<(count + threads - 1) / threads, threads>>>(device_a, device_b, device_sum, count);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpy(sum.data(), device_sum, bytes, cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaFree(device_a));
  CUDA_CHECK(cudaFree(device_b));
  CUDA_CHECK(cudaFree(device_sum));
  const double milliseconds = watch.milliseconds();

  bool passed = true;
  for (int i = 0; i < count; ++i) passed &= sum[i] == a[i] + b[i];
  std::printf("result   %d sums, checksum %016llx\n", count,
              static_cast<unsigned long long>(checksum(sum.data(), bytes)));
  return finish(passed, milliseconds);
}
