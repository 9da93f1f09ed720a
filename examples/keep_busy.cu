// Keeps a GPU busy with short kernels for some time and counts them, to measure the throughput of a GPU
// share. SIGTERM and Ctrl-C end it early; it still prints its result. The result shows a kernel that was lost
// or executed twice.
#include <csignal>
#include <vector>

#include "common/example.h"

__global__ void work(uint32_t* numbers, uint32_t rounds) {
  const uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
  uint32_t number = numbers[at];
  for (uint32_t round = 0; round < rounds; ++round) number = number * 1664525u + 1013904223u;
  numbers[at] = number;
}

// The number that this many rounds make of 0: composes x -> a x + c with itself by squaring.
static uint32_t after_rounds(uint64_t rounds) {
  uint32_t a = 1, c = 0, step_a = 1664525u, step_c = 1013904223u;
  for (; rounds != 0; rounds >>= 1) {
    if (rounds & 1) {
      a = step_a * a;
      c = step_a * c + step_c;
    }
    step_c = step_a * step_c + step_c;
    step_a = step_a * step_a;
  }
  return c;
}

static volatile std::sig_atomic_t asked_to_end = 0;

int main(int argc, char** argv) {
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, [](int) { asked_to_end = 1; });
  long seconds = 1, memory_mib = 64, rounds = 2000, every = 0;
  parse_options(
      argc, argv, "Launches short kernels, one after the other.",
      {{"--seconds", "duration", &seconds, 1, 86'400},
       {"--memory", "MiB of device memory to hold", &memory_mib, 1, 1 << 20},
       {"--rounds", "loop iterations per kernel", &rounds, 1, 1'000'000},
       {"--every", "print the count after so many seconds; 0: only at the end", &every, 0, 86'400}});
  constexpr uint32_t kThreads = 128, kBlocks = 64, kKernelsAtOnce = 16;

  print_device();
  void* held;
  CUDA_CHECK(cudaMalloc(&held, static_cast<size_t>(memory_mib) << 20));
  uint32_t* numbers;
  CUDA_CHECK(cudaMalloc(&numbers, kThreads * kBlocks * sizeof *numbers));
  CUDA_CHECK(cudaMemset(numbers, 0, kThreads * kBlocks * sizeof *numbers));
  Stopwatch watch;
  uint64_t kernels = 0;
  double next = 1000.0 * static_cast<double>(every);
  while (!asked_to_end && watch.milliseconds() < 1000.0 * static_cast<double>(seconds)) {
    for (uint32_t i = 0; i < kKernelsAtOnce; ++i)
      work<<<kBlocks, kThreads>>>(numbers, static_cast<uint32_t>(rounds));
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaDeviceSynchronize());
    kernels += kKernelsAtOnce;
    if (every != 0 && watch.milliseconds() >= next) {
      std::printf("kernels so far: %llu\n", static_cast<unsigned long long>(kernels));
      std::fflush(stdout);
      next += 1000.0 * static_cast<double>(every);
    }
  }
  const double milliseconds = watch.milliseconds();

  std::vector<uint32_t> result(kThreads * kBlocks);
  CUDA_CHECK(cudaMemcpy(result.data(), numbers, result.size() * sizeof result[0], cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaFree(numbers));
  CUDA_CHECK(cudaFree(held));
  const uint32_t expected = after_rounds(kernels * static_cast<uint64_t>(rounds));
  bool passed = true;
  for (const uint32_t number : result) passed &= number == expected;
  std::printf("kernels  %llu, %.0f per second\n", static_cast<unsigned long long>(kernels),
              1000.0 * static_cast<double>(kernels) / milliseconds);
  return finish(passed, milliseconds);
}
