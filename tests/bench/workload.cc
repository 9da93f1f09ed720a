// What gpupool-bench measures, as an ordinary driver-API program: run once on the device library directly and once through
// the pool. Prints one "name value" line per figure; times are medians over many calls.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = "an unknown error";
  cuGetErrorName(result, &name);
  std::fprintf(stderr, "gpupool-bench-workload: %s gave %s\n", what, name);
  std::exit(1);
}
#define CHECK(call) check(call, #call)

constexpr const char* kKernel = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .entry nothing(.param .u64 pointer, .param .u32 count) { ret; }
)";

void null_call(CUstream stream) {
  std::vector<double> times;
  for (int i = 0; i < 5000; ++i) {
    const auto begin = Clock::now();
    CHECK(cuStreamQuery(stream));
    times.push_back(microseconds(begin, Clock::now()));
  }
  std::printf("null_call_us %.4f\n", median(times));
}

void launches(CUstream stream) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CHECK(cuModuleLoadData(&module, kKernel));
  CHECK(cuModuleGetFunction(&function, module, "nothing"));
  CUdeviceptr pointer = 0;
  unsigned count = 1;
  void* parameters[] = {&pointer, &count};
  std::vector<double> queued, whole;
  for (int round = 0; round < 15; ++round) {
    constexpr int kLaunches = 2000;
    CHECK(cuStreamSynchronize(stream));
    const auto begin = Clock::now();
    for (int i = 0; i < kLaunches; ++i) CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    const auto returned = Clock::now();
    CHECK(cuStreamSynchronize(stream));
    queued.push_back(microseconds(begin, returned) / kLaunches);
    whole.push_back(microseconds(begin, Clock::now()) / kLaunches);
  }
  std::printf("launch_client_us %.4f\nlaunch_total_us %.4f\n", median(queued), median(whole));
  CHECK(cuModuleUnload(module));
}

void allocations() {
  std::vector<double> times;
  for (int i = 0; i < 2000; ++i) {
    CUdeviceptr memory = 0;
    const auto begin = Clock::now();
    CHECK(cuMemAlloc(&memory, 4096));
    CHECK(cuMemFree(memory));
    times.push_back(microseconds(begin, Clock::now()));
  }
  std::printf("alloc_free_us %.4f\n", median(times));
}

// GB/s of synchronous copies of pinned memory, with the data known to have arrived.
void bandwidth(size_t largest) {
  CUdeviceptr device = 0;
  void* host = nullptr;
  CHECK(cuMemAlloc(&device, largest));
  CHECK(cuMemHostAlloc(&host, largest, 0));
  std::memset(host, 1, largest);
  for (size_t bytes = 4096; bytes <= largest; bytes *= 4) {
    const int rounds = bytes <= (1u << 20) ? 100 : 5;
    std::vector<double> up, down;
    for (int i = 0; i < rounds + 1; ++i) {
      auto begin = Clock::now();
      CHECK(cuMemcpyHtoD(device, host, bytes));
      CHECK(cuCtxSynchronize());
      const double up_time = microseconds(begin, Clock::now());
      begin = Clock::now();
      CHECK(cuMemcpyDtoH(host, device, bytes));
      const double down_time = microseconds(begin, Clock::now());
      if (i == 0) continue;  // the first touches the memory
      up.push_back(up_time);
      down.push_back(down_time);
    }
    const double gigabytes = static_cast<double>(bytes) * 1e-9;
    std::printf("h2d_%zu_GBps %.4f\nd2h_%zu_GBps %.4f\n", bytes, gigabytes / (median(up) * 1e-6), bytes,
                gigabytes / (median(down) * 1e-6));
  }
  CHECK(cuMemFreeHost(host));
  CHECK(cuMemFree(device));
}

}  // namespace

int main(int argc, char** argv) {
  const size_t largest = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{256} << 20;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuCtxSynchronize());
  null_call(stream);
  launches(stream);
  allocations();
  bandwidth(largest);
  CHECK(cuStreamDestroy(stream));
  return 0;
}
