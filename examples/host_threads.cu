// Several host threads use the device at once, each on its own default stream (-default-stream per-thread).
#include <thread>
#include <vector>

#include "common/example.h"

constexpr int kSteps = 10;

// One explicit time step of heat diffusion in a rod with constant temperatures at its ends.
__host__ __device__ inline float heat_step(const float* rod, int i, int count) {
  return i == 0 || i == count - 1 ? rod[i] : 0.25f * (rod[i - 1] + 2 * rod[i] + rod[i + 1]);
}

__global__ void spread_heat(const float* before, float* after, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) after[i] = heat_step(before, i, count);
}

// Integers below 16 divided by 4 ten times are exact in a float (24 bits), so CPU and GPU results are equal.
static std::vector<float> make_rod(int count, int worker) {
  std::vector<float> rod(count);
  for (int i = 0; i < count; ++i) rod[i] = static_cast<float>((i * 31 + worker * 57) % 16);
  return rod;
}

static std::vector<float> simulate_on_device(const std::vector<float>& start) {
  const int count = static_cast<int>(start.size());
  const size_t bytes = count * sizeof(float);
  std::vector<float> result(count);
  float *before, *after;
  CUDA_CHECK(cudaMalloc(&before, bytes));
  CUDA_CHECK(cudaMalloc(&after, bytes));
  // Without an explicit stream, each host thread's calls go to its own per-thread default stream.
  CUDA_CHECK(cudaMemcpyAsync(before, start.data(), bytes, cudaMemcpyHostToDevice));
  for (int step = 0; step < kSteps; ++step) {
    spread_heat<<<(count + 255) / 256, 256>>>(before, after, count);
    CUDA_CHECK(cudaGetLastError());
    std::swap(before, after);
  }
  CUDA_CHECK(cudaMemcpyAsync(result.data(), before, bytes, cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaStreamSynchronize(0));
  CUDA_CHECK(cudaFree(before));
  CUDA_CHECK(cudaFree(after));
  return result;
}

static bool matches_cpu(std::vector<float> rod, const std::vector<float>& result) {
  const int count = static_cast<int>(rod.size());
  std::vector<float> after(count);
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < count; ++i) after[i] = heat_step(rod.data(), i, count);
    rod.swap(after);
  }
  return rod == result;
}

int main(int argc, char** argv) {
  long workers = 4, size = 20'000;
  parse_options(
      argc, argv, "Simulates heat in several rods, one host thread per rod.",
      {{"--threads", "host threads", &workers, 1, 256}, {"--size", "points per rod", &size, 1, 1 << 24}});

  print_device();
  Stopwatch watch;
  std::vector<std::vector<float>> results(workers);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker)
    threads.emplace_back([&results, worker, size] {
      results[worker] = simulate_on_device(make_rod(static_cast<int>(size), worker));
    });
  for (std::thread& thread : threads) thread.join();
  const double milliseconds = watch.milliseconds();

  bool passed = true;
  uint64_t hash = 0;
  for (int worker = 0; worker < workers; ++worker) {
    passed &= matches_cpu(make_rod(static_cast<int>(size), worker), results[worker]);
    hash ^= checksum(results[worker].data(), results[worker].size() * sizeof(float)) + worker;
  }
  std::printf("result   %ld threads, %ld points each, checksum %016llx\n", workers, size,
              static_cast<unsigned long long>(hash));
  return finish(passed, milliseconds);
}
