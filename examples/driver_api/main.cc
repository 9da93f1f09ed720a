// Uses only the driver API (linked with -lcuda, without the CUDA runtime): loads PTX and launches two kernels
// on a stream.
#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../common/options.h"

extern const char kernels_ptx[];  // kernels.cu as PTX text, see cmake/cuda_programs.cmake

#define CU_CHECK(call) check_cu((call), #call, __LINE__)

static void check_cu(CUresult status, const char* call, int line) {
  if (status == CUDA_SUCCESS) return;
  const char *name = "unknown error", *text = "";
  cuGetErrorName(status, &name);
  cuGetErrorString(status, &text);
  std::fprintf(stderr, "%s:%d: %s failed: %s (%s)\n", __FILE__, line, call, text, name);
  std::exit(EXIT_FAILURE);
}

int main(int argc, char** argv) {
  long size = 200'000;
  int scale = 3;
  parse_options(argc, argv, "Runs two kernels through the CUDA driver API.", {{"--size", "elements", &size}});
  int count = static_cast<int>(size);
  const size_t bytes = count * sizeof(int);

  CUdevice device;
  CUcontext context;
  char name[256];
  int major = 0, minor = 0;
  CU_CHECK(cuInit(0));
  CU_CHECK(cuDeviceGet(&device, 0));
  CU_CHECK(cuDeviceGetName(name, sizeof name, device));
  CU_CHECK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  CU_CHECK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
  std::printf("device   %s, compute capability %d.%d\n", name, major, minor);
  CU_CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CU_CHECK(cuCtxSetCurrent(context));

  CUmodule module;
  CUfunction saxpy, reverse_blocks;
  CUdeviceptr device_scale, x, y;
  size_t scale_bytes = 0;
  CU_CHECK(cuModuleLoadData(&module, kernels_ptx));
  CU_CHECK(cuModuleGetFunction(&saxpy, module, "saxpy"));
  CU_CHECK(cuModuleGetFunction(&reverse_blocks, module, "reverse_blocks"));
  CU_CHECK(cuModuleGetGlobal(&device_scale, &scale_bytes, module, "scale"));

  CUstream stream;
  CUevent start, stop;
  CU_CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU_CHECK(cuEventCreate(&start, CU_EVENT_DEFAULT));
  CU_CHECK(cuEventCreate(&stop, CU_EVENT_DEFAULT));
  CU_CHECK(cuMemAlloc(&x, bytes));
  CU_CHECK(cuMemAlloc(&y, bytes));

  std::vector<int> host_x(count), result(count);
  for (int i = 0; i < count; ++i) host_x[i] = i % 1013;
  constexpr int kInitial = 100;
  CU_CHECK(cuMemcpyHtoDAsync(device_scale, &scale, sizeof scale, stream));
  CU_CHECK(cuMemcpyHtoDAsync(x, host_x.data(), bytes, stream));
  CU_CHECK(cuMemsetD32Async(y, kInitial, count, stream));

  const unsigned threads = 128, blocks = (count + threads - 1) / threads;
  void* saxpy_arguments[] = {&x, &y, &count};
  void* reverse_arguments[] = {&y, &count};
  CU_CHECK(cuEventRecord(start, stream));
  CU_CHECK(cuLaunchKernel(saxpy, blocks, 1, 1, threads, 1, 1, 0, stream, saxpy_arguments, nullptr));
  CU_CHECK(cuLaunchKernel(reverse_blocks, blocks, 1, 1, threads, 1, 1, threads * sizeof(int), stream,
                          reverse_arguments, nullptr));
  CU_CHECK(cuEventRecord(stop, stream));
  CU_CHECK(cuMemcpyDtoHAsync(result.data(), y, bytes, stream));
  CU_CHECK(cuStreamSynchronize(stream));
  float milliseconds = 0;
  CU_CHECK(cuEventElapsedTime(&milliseconds, start, stop));

  bool passed = scale_bytes == sizeof scale;
  unsigned checksum = 0;
  for (int first = 0; first < count; first += threads) {
    const int last = std::min<int>(first + threads, count);
    for (int i = first; i < last; ++i) {
      passed &= result[i] == kInitial + scale * host_x[last - 1 - (i - first)];
      checksum = checksum * 31 + static_cast<unsigned>(result[i]);
    }
  }

  CU_CHECK(cuMemFree(x));
  CU_CHECK(cuMemFree(y));
  CU_CHECK(cuEventDestroy(start));
  CU_CHECK(cuEventDestroy(stop));
  CU_CHECK(cuStreamDestroy(stream));
  CU_CHECK(cuModuleUnload(module));
  CU_CHECK(cuDevicePrimaryCtxRelease(device));
  std::printf("result   %d elements through 2 kernels from PTX, checksum %08x\n", count, checksum);
  if (!passed) {
    std::fprintf(stderr, "FAILED: the device's result differs from the CPU's\n");
    return EXIT_FAILURE;
  }
  std::printf("PASSED   kernels took %.1f ms\n", milliseconds);
  return EXIT_SUCCESS;
}
