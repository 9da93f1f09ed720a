// Shared code of the examples that use the runtime API: error checks, a stopwatch, and the lines that they
// print. CUDA_CHECK ends the program with EXIT_FAILURE.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "options.h"

#define CUDA_CHECK(call) check_cuda((call), #call, __FILE__, __LINE__)

inline void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s:%d: %s failed: %s (%s)\n", file, line, call, cudaGetErrorString(status),
               cudaGetErrorName(status));
  std::exit(EXIT_FAILURE);
}

inline void print_device() {
  int device = 0;
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::printf("device   %s, compute capability %d.%d, %.1f GiB\n", properties.name, properties.major,
              properties.minor, static_cast<double>(properties.totalGlobalMem) / (1 << 30));
}

class Stopwatch {
 public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Returns the FNV-1a hash, so that results of two runs can be compared by eye.
inline uint64_t checksum(const void* data, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; ++i)
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
  return hash;
}

// Prints the closing line and returns the program's exit status.
inline int finish(bool passed, double milliseconds) {
  if (passed)
    std::printf("PASSED   %.1f ms on the device, transfers included\n", milliseconds);
  else
    std::fprintf(stderr, "FAILED: the device's result differs from the CPU's\n");
  return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
