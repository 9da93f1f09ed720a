// gpupool-bench-workload: measures single calls and copies. It uses only the driver API; gpupool-bench runs
// it directly on the device library and through the pool.
//
//     gpupool-bench-workload LARGEST         everything, with copies of up to LARGEST bytes
//     gpupool-bench-workload calls           null calls and launches
//     gpupool-bench-workload pinned BYTES    copies of pinned memory of this size
//     gpupool-bench-workload pageable BYTES  copies of pageable memory of this size
//     gpupool-bench-workload idle            starts a session and does nothing until it is killed
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/bench/program.h"

namespace {

using namespace gpupool::bench;

constexpr const char* kKernel = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .entry nothing(.param .u64 pointer, .param .u32 count) { ret; }
)";

void null_call(CUstream stream) {
  std::vector<double> times;
  for (int i = 0, count = sample_count(5000); i < count; ++i) {
    const auto begin = Clock::now();
    CHECK(cuStreamQuery(stream));
    times.push_back(microseconds(begin));
  }
  report("null_call_us", middle(times));
}

// Measures the calling thread's time per launch, in bursts of 2,000 that fit into one batch of the client and
// in runs of `many` that exceed every batch, and the total time per launch until the device has finished.
void launches(CUstream stream, int many) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CHECK(cuModuleLoadData(&module, kKernel));
  CHECK(cuModuleGetFunction(&function, module, "nothing"));
  CUdeviceptr pointer = 0;
  unsigned count = 1;
  void* parameters[] = {&pointer, &count};
  const auto time = [&](int number, double* queued) {
    CHECK(cuStreamSynchronize(stream));
    const auto begin = Clock::now();
    for (int i = 0; i < number; ++i)
      CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    *queued = microseconds(begin) / number;
    CHECK(cuStreamSynchronize(stream));
    return microseconds(begin) / number;
  };
  std::vector<double> queued(sample_count(15)), queued_long(sample_count(5)), whole;
  for (double& each : queued) time(2000, &each);
  for (double& each : queued_long) whole.push_back(time(many, &each));
  report("launch_client_us", middle(queued));
  report("launch_client_long_us", middle(queued_long));
  report("launch_total_us", middle(whole));
  CHECK(cuModuleUnload(module));
}

void allocations() {
  std::vector<double> times;
  for (int i = 0, count = sample_count(2000); i < count; ++i) {
    CUdeviceptr memory = 0;
    const auto begin = Clock::now();
    CHECK(cuMemAlloc(&memory, 4096));
    CHECK(cuMemFree(memory));
    times.push_back(microseconds(begin));
  }
  report("alloc_free_us", middle(times));
}

// Measures asynchronous 4 KiB copies to the device: the calling thread's time per copy in bursts of 256 KiB,
// which fit into one batch of the client, and in runs of 64 MiB, which exceed every batch and socket buffer;
// and the bandwidth of the runs until all data has arrived.
void small_copies(CUstream stream) {
  constexpr size_t kBytes = 4096, kPlaces = 1024;
  CUdeviceptr device = 0;
  void* host = nullptr;
  CHECK(cuMemAlloc(&device, kBytes * kPlaces));
  CHECK(cuMemHostAlloc(&host, kBytes * kPlaces, 0));
  std::memset(host, 1, kBytes * kPlaces);
  const auto copies = [&](size_t number) {
    for (size_t i = 0; i < number; ++i) {
      const size_t at = i % kPlaces * kBytes;
      CHECK(cuMemcpyHtoDAsync(device + at, static_cast<char*>(host) + at, kBytes, stream));
    }
  };
  copies(kPlaces);
  std::vector<double> each, each_long, rates;
  for (int round = 0, rounds = sample_count(100); round < rounds; ++round) {
    CHECK(cuStreamSynchronize(stream));
    constexpr size_t kBurst = 64;
    const auto begin = Clock::now();
    copies(kBurst);
    each.push_back(microseconds(begin) / kBurst);
  }
  const size_t many = (is_quick() ? 2 : 16) * kPlaces;
  for (int round = 0, rounds = sample_count(5); round < rounds; ++round) {
    CHECK(cuStreamSynchronize(stream));
    const auto begin = Clock::now();
    copies(many);
    each_long.push_back(microseconds(begin) / static_cast<double>(many));
    CHECK(cuStreamSynchronize(stream));
    rates.push_back(static_cast<double>(many * kBytes) * 1e-3 / microseconds(begin));
  }
  report("small_h2d_client_us", middle(each));
  report("small_h2d_client_long_us", middle(each_long));
  report("small_h2d_GBps", middle(rates));
  CHECK(cuMemFreeHost(host));
  CHECK(cuMemFree(device));
}

// Measures synchronous copies in GB/s until the data has arrived, alternating with a memcpy of the same bytes
// from the same memory, because the memory bandwidth of a shared machine varies.
void bandwidth(const char* kind, CUdeviceptr device, void* host, void* other, size_t bytes, int rounds) {
  std::vector<double> up, down, within;
  for (int i = 0; i < rounds + 1; ++i) {
    auto begin = Clock::now();
    CHECK(cuMemcpyHtoD(device, host, bytes));
    CHECK(cuCtxSynchronize());
    const double up_time = microseconds(begin);
    begin = Clock::now();
    CHECK(cuMemcpyDtoH(host, device, bytes));
    const double down_time = microseconds(begin);
    begin = Clock::now();
    std::memcpy(other, host, bytes);
    asm volatile("" : : "r"(other) : "memory");
    const double within_time = microseconds(begin);
    if (i == 0) continue;  // the first round faults the memory in
    up.push_back(up_time);
    down.push_back(down_time);
    within.push_back(within_time);
  }
  const auto name = [&](const char* way) {
    return std::string(way) + "_" + kind + "_" + std::to_string(bytes);
  };
  report(name("h2d").c_str(), static_cast<double>(bytes) * 1e-3 / middle(up));
  report(name("d2h").c_str(), static_cast<double>(bytes) * 1e-3 / middle(down));
  report(name("memcpy").c_str(), static_cast<double>(bytes) * 1e-3 / middle(within));
}

void all_sizes(const char* kind, CUdeviceptr device, void* host, void* other, size_t largest) {
  for (size_t bytes = 4096; bytes <= largest; bytes *= 4) {
    const int rounds = bytes <= (1u << 20) ? 100 : bytes <= (16u << 20) ? 20 : 5;
    bandwidth(kind, device, host, other, bytes, sample_count(rounds));
  }
}

// Queues copies one after the other as perftest does: as many as make 64 MiB, at least five.
void pinned_copies(size_t bytes) {
  CUdeviceptr device = 0;
  void* pinned = nullptr;
  CUstream stream = nullptr;
  CHECK(cuMemAlloc(&device, bytes));
  CHECK(cuMemHostAlloc(&pinned, bytes, 0));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::memset(pinned, 1, bytes);
  const size_t copies = is_quick() ? 5 : std::max<size_t>(5, (64u << 20) / bytes);
  const auto measure = [&](const char* way, size_t count, const auto& copy) {
    const auto begin = Clock::now();
    for (size_t i = 0; i < count; ++i) CHECK(copy());
    CHECK(cuStreamSynchronize(stream));
    if (count != copies) return;  // the first round faults the memory in
    report((way + std::string("_pinned_") + std::to_string(bytes)).c_str(),
           static_cast<double>(count * bytes) * 1e-3 / microseconds(begin));
  };
  for (const size_t count : {size_t{1}, copies}) {
    measure("h2d", count, [&] { return cuMemcpyHtoDAsync(device, pinned, bytes, stream); });
    measure("d2h", count, [&] { return cuMemcpyDtoHAsync(pinned, device, bytes, stream); });
  }
  CHECK(cuStreamDestroy(stream));
  CHECK(cuMemFreeHost(pinned));
  CHECK(cuMemFree(device));
}

void copies(size_t largest) {
  CUdeviceptr device = 0;
  void* pinned = nullptr;
  CHECK(cuMemAlloc(&device, largest));
  CHECK(cuMemHostAlloc(&pinned, largest, 0));
  std::memset(pinned, 1, largest);
  std::vector<char> other(largest, 1);
  all_sizes("pinned", device, pinned, other.data(), largest);
  CHECK(cuMemFreeHost(pinned));
  std::vector<char> pageable(largest, 1);
  all_sizes("pageable", device, pageable.data(), other.data(), largest);
  CHECK(cuMemFree(device));
}

void pageable_copies(size_t bytes) {
  CUdeviceptr device = 0;
  CHECK(cuMemAlloc(&device, bytes));
  std::vector<char> pageable(bytes, 1), other(bytes, 1);
  bandwidth("pageable", device, pageable.data(), other.data(), bytes, bytes >= (size_t{1} << 30) ? 2 : 5);
  CHECK(cuMemFree(device));
}

}  // namespace

int main(int argc, char** argv) {
  const CUstream stream = start_cuda();
  const std::string what = argc > 1 ? argv[1] : "268435456";
  if (what == "idle") {
    report("idle", 1);
    std::fflush(stdout);
    while (true) ::pause();
  }
  if (what == "pinned") {
    pinned_copies(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : size_t{1} << 20);
    return 0;
  }
  if (what == "pageable") {
    pageable_copies(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : size_t{1} << 20);
    return 0;
  }
  null_call(stream);
  launches(stream, is_quick() ? 5'000 : what == "calls" ? 20'000 : 100'000);
  if (what == "calls") return 0;
  allocations();
  small_copies(stream);
  copies(std::strtoull(what.c_str(), nullptr, 10));
  CHECK(cuStreamDestroy(stream));
  return 0;
}
