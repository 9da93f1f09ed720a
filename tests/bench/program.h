// Shared code of the measured programs. They use only the driver API, so that they run on any libcuda.so.1.
// CHECK exits with status 1 on an error.
#pragma once
#include <cuda.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace gpupool::bench {

using Clock = std::chrono::steady_clock;

inline double microseconds(Clock::time_point from, Clock::time_point to = Clock::now()) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

inline double middle(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

inline void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  std::fprintf(stderr, "gpupool-bench: %s gave %s\n", what, name ? name : "an unknown error");
  std::exit(1);
}
#define CHECK(call) ::gpupool::bench::check(call, #call)

// True in runs of gpupool-bench --quick, which test the harness alone.
inline bool is_quick() {
  return std::getenv("GPUPOOL_BENCH_QUICK") != nullptr;
}
// Returns how often to measure what other runs measure `whole` times.
inline int sample_count(int whole) {
  return is_quick() ? std::max(3, whole / 10) : whole;
}

// Prints one measured value as a line for gpupool-bench.
inline void report(const char* name, double value) {
  std::printf("%s %.6g\n", name, value);
}

// True after SIGTERM, once end_at_sigterm() was called.
inline volatile sig_atomic_t ended = 0;
inline void end_at_sigterm() {
  (void)::signal(SIGTERM, [](int) { ended = 1; });
}

inline long long nanoseconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// Prints a pause, in nanoseconds of the monotonic clock, for longest_pause() (tests/bench/pauses.h).
inline void report_pause(Clock::time_point from, Clock::time_point to) {
  std::printf("paused %lld %lld\n", nanoseconds(from.time_since_epoch()), nanoseconds(to - from));
  std::fflush(stdout);
}

inline CUstream start_cuda() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuCtxSynchronize());
  return stream;
}

}  // namespace gpupool::bench
