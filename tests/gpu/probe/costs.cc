// Costs of contexts, events and wake-ups.
#include <cstdlib>
#include <thread>

#include "probe.h"

using namespace probe;

namespace {

// Creates the first context of a process, and a second one.
void make_contexts(const char* connections) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
  const auto before = used_bytes();
  const auto used = [&](const char* name) {
    const auto now = used_bytes();
    if (now && before) see(name, (*now - *before) / kMiB);
  };
  CUcontext first = nullptr, second = nullptr;
  see("cuInit_us", time_of([] { CHECK(cuInit(0)); }));
  used("used_after_cuInit_MiB");
  step("cuCtxCreate");
  see("create_us", time_of([&] { CHECK(cuCtxCreate(&first, nullptr, 0, 0)); }));
  used("used_after_first_MiB");
  size_t with_one = 0, with_two = 0, total = 0;
  CHECK(cuMemGetInfo(&with_one, &total));
  see("create_second_us", time_of([&] { CHECK(cuCtxCreate(&second, nullptr, 0, 0)); }));
  CHECK(cuMemGetInfo(&with_two, &total));
  see("second_MiB", (static_cast<double>(with_one) - static_cast<double>(with_two)) / kMiB);
  used("used_after_second_MiB");
  step("cuCtxDestroy");
  see("destroy_second_us", time_of([&] { CHECK(cuCtxDestroy(second)); }));
  see("destroy_us", time_of([&] { CHECK(cuCtxDestroy(first)); }));
  used("used_after_both_destroyed_MiB");
}

// Returns the microseconds from the CPU's store that releases a stream until the call that waits for its
// event returns.
double wake_up(unsigned flags, CUstream stream, const Word& word, uint32_t round) {
  CUevent event = nullptr;
  CHECK(cuEventCreate(&event, flags | CU_EVENT_DISABLE_TIMING));
  CHECK(cuStreamWaitValue32(stream, word.device, round, CU_STREAM_WAIT_VALUE_GEQ));
  CHECK(cuEventRecord(event, stream));
  Clock::time_point stored;
  std::thread releases([&] {
    std::this_thread::sleep_for(milliseconds(2));  // the other thread waits by then
    stored = Clock::now();
    word.store(round);
  });
  CHECK(cuEventSynchronize(event));
  const auto woken = Clock::now();
  releases.join();
  CHECK(cuEventDestroy(event));
  return microseconds(stored, woken);
}

// Creates a context after an address range was reserved, as a worker does for its session.
void make_context_behind_range(size_t bytes, CUdeviceptr wished = 0x2000'0000'0000) {
  CHECK(cuInit(0));
  CUdeviceptr range = 0;
  if (bytes != 0) see("reserve", name_of(cuMemAddressReserve(&range, bytes, 0, wished, 0)));
  CUcontext context = nullptr;
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0));
  step("cuDevicePrimaryCtxRetain");
  see("create_us", time_of([&] { CHECK(cuDevicePrimaryCtxRetain(&context, device)); }));
  CHECK(cuCtxSetCurrent(context));
  CUdeviceptr memory = 0;
  see("first_memory_us", time_of([&] { CHECK(cuMemAlloc(&memory, kMiB)); }));
  see("destroy_us", time_of([&] { CHECK(cuDevicePrimaryCtxRelease(device)); }));
}

// The other way round, and with memory in the range.
PROBE(range_behind_context) {
  const Device device;
  CUdeviceptr range = 0;
  CUresult reserved = CUDA_ERROR_OUT_OF_MEMORY;
  size_t bytes = 32 * kTiB;
  while (reserved != CUDA_SUCCESS && bytes > kGiB)
    reserved = cuMemAddressReserve(&range, bytes /= 2, 0, 0x2000'0000'0000, 0);
  see("reserved_GiB", static_cast<double>(bytes / kGiB));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle memory = 0;
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  constexpr size_t kSize = 32 * kMiB;
  see("create_us", time_of([&] { CHECK(cuMemCreate(&memory, kSize, &properties, 0)); }));
  see("map_us", time_of([&] { CHECK(cuMemMap(range, kSize, 0, memory, 0)); }));
  see("access_us", time_of([&] { CHECK(cuMemSetAccess(range, kSize, &access, 1)); }));
  see("memset_us", time_of([&] {
        CHECK(cuMemsetD8(range, 1, kSize));
        CHECK(cuCtxSynchronize());
      }));
  CUcontext second = nullptr;
  see("second_context_us", time_of([&] { CHECK(cuCtxCreate(&second, nullptr, 0, 0)); }));
}

Probe behind_no_range("context_behind_no_range", [] { make_context_behind_range(0); });
Probe behind_1_tib("context_behind_1_TiB", [] { make_context_behind_range(kTiB); });
Probe behind_4_tib("context_behind_4_TiB", [] { make_context_behind_range(4 * kTiB); });
Probe behind_16_tib("context_behind_16_TiB", [] { make_context_behind_range(16 * kTiB); });
Probe behind_low("context_behind_16_TiB_low", [] { make_context_behind_range(16 * kTiB, 0x1000'0000'0000); });
Probe behind_high("context_behind_16_TiB_high",
                  [] { make_context_behind_range(16 * kTiB, 0x6000'0000'0000); });
Probe contexts_8("context_8", [] { make_contexts("8"); });
Probe contexts_32("context_32", [] { make_contexts("32"); });

}  // namespace

PROBE(event_cost) {
  const Device device;
  CUstream stream = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Kernels kernels;
  const CUfunction function = kernels.function("nothing");
  CUdeviceptr data = 0;
  void* parameters[] = {&data};
  const auto launch = [&] {
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
  };
  launch();
  CHECK(cuStreamSynchronize(stream));
  constexpr int kMany = 500;  // fits into a queue
  const auto each = [&](const std::function<void()>& body) {
    std::vector<double> times;
    for (int round = 0; round < 10; ++round) {
      times.push_back(time_of([&] {
                        for (int i = 0; i < kMany; ++i) body();
                      }) /
                      kMany);
      CHECK(cuStreamSynchronize(stream));
    }
    return median(times);
  };
  see("launch_us", each(launch));
  for (const bool timed : {false, true}) {
    CUevent event = nullptr;
    CHECK(cuEventCreate(&event, timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
    const std::string name = timed ? "timed_event_" : "event_";
    see(name + "record_us", each([&] { CHECK(cuEventRecord(event, stream)); }));
    see(name + "launch_and_record_us", each([&] { launch(), CHECK(cuEventRecord(event, stream)); }));
    see(name + "query_us", each([&] { CHECK(cuEventQuery(event)); }));
  }
  see("create_destroy_us", each([] {
        CUevent event = nullptr;
        CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        CHECK(cuEventDestroy(event));
      }));
}

PROBE(wake_up) {
  const Device device;
  CUstream stream = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Word word, answer;
  uint32_t round = 0;
  const auto measure = [&](const char* name, const std::function<double()>& once) {
    step(name);
    std::vector<double> times;
    for (int i = 0; i < 200; ++i) times.push_back(once());
    see(std::string(name) + "_us", median(times));
  };
  measure("blocking", [&] { return wake_up(CU_EVENT_BLOCKING_SYNC, stream, word, ++round); });
  measure("spinning", [&] { return wake_up(0, stream, word, ++round); });
  // The same without the driver's wait: the stream writes a word, which the CPU polls.
  measure("polled_word", [&] {
    const uint32_t now = ++round;
    CHECK(cuStreamWaitValue32(stream, word.device, now, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(cuStreamWriteValue32(stream, answer.device, now, CU_STREAM_WRITE_VALUE_DEFAULT));
    const auto stored = Clock::now();
    word.store(now);
    while (answer.load() != now) {
    }
    return microseconds(stored);
  });
}
