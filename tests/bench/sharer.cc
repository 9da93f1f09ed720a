// gpupool-bench-sharer: one of several programs that share a GPU. gpupool-bench --suite sharing runs them
// side by side. It uses only the driver API.
//
//     gpupool-bench-sharer WAY LOOPS BEGIN SECONDS     keeps the device busy; counts the kernels before BEGIN
//                                                      (CLOCK_MONOTONIC, in s) and in the SECONDS after it
//     gpupool-bench-sharer short LOOPS BEGIN SECONDS   measures a synchronous kernel launch every 10 ms
//     gpupool-bench-sharer late LOOPS BEGIN SECONDS    keeps the device busy, but only from BEGIN on
//     gpupool-bench-sharer to_device|to_host LOOPS BEGIN SECONDS    measures copies of pinned memory, in MB/s
//     gpupool-bench-sharer stuck LOOPS BEGIN SECONDS   queues launches behind a large copy, a host function,
//                                                      and a stream wait, which end SECONDS after BEGIN
//     gpupool-bench-sharer memory BEGIN SECONDS        allocates all memory at BEGIN; holds it for SECONDS
//     gpupool-bench-sharer calibrate MICROSECONDS      prints the LOOPS for a kernel of this length
//
// WAY: plain, wide (16 blocks), ex (cuLaunchKernelEx), cooperative, library (a kernel of a CUlibrary, as in
// cuBLAS), fill (a memset after each kernel), graph (launches a graph with one kernel), shapes (a different
// grid per launch, as for sequences of varying length).
#include <unistd.h>

#include <cstring>
#include <deque>
#include <string>

#include "tests/bench/monotonic.h"
#include "tests/bench/program.h"

namespace {

using namespace gpupool::bench;

// Each thread of the first `working` blocks loops `loops` times; the other blocks return at once.
constexpr const char* kKernel = R"(
.version 7.0
.target sm_60
.address_size 64
.visible .entry work(.param .u64 data, .param .u32 loops, .param .u32 working)
{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .b64 %d<3>;
  .reg .f32 %f<3>;
  ld.param.u32 %r2, [working];
  mov.u32 %r3, %ctaid.x;
  setp.ge.u32 %p1, %r3, %r2;
  @%p1 ret;
  ld.param.u64 %d1, [data];
  ld.param.u32 %r1, [loops];
  cvta.to.global.u64 %d1, %d1;
  ld.global.f32 %f1, [%d1];
again:
  fma.rn.f32 %f1, %f1, 0f3F7FFFF0, 0f3A000000;
  sub.u32 %r1, %r1, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra again;
  st.global.f32 [%d1], %f1;
  ret;
}
)";

constexpr size_t kQueued = 8;  // kernels in flight
constexpr size_t kGranule = 2u << 20;
constexpr size_t kBytes = 64 << 10;

struct Work {
  CUstream stream = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr data = 0, filled = 0;
  unsigned loops = 0, working = ~0u;
  CUgraphExec graph = nullptr;
  unsigned launches = 0;

  void capture() {
    CUgraph captured = nullptr;
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch("plain");
    CHECK(cuStreamEndCapture(stream, &captured));
    CHECK(cuGraphInstantiate(&graph, captured, 0));
    CHECK(cuGraphDestroy(captured));
  }
  void launch(const std::string& way) {
    void* parameters[] = {&data, &loops, &working};
    if (way == "graph") {
      CHECK(cuGraphLaunch(graph, stream));
    } else if (way == "cooperative") {
      CHECK(cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters));
    } else if (way == "ex") {
      CUlaunchConfig config{};
      config.gridDimX = config.gridDimY = config.gridDimZ = 1;
      config.blockDimX = config.blockDimY = config.blockDimZ = 1;
      config.hStream = stream;
      CHECK(cuLaunchKernelEx(&config, function, parameters, nullptr));
    } else if (way == "shapes") {
      working = 1;
      CHECK(cuLaunchKernel(function, 512 + launches++ % 512, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    } else if (way == "wide") {
      CHECK(cuLaunchKernel(function, 16, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    } else {
      CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    }
    if (way == "fill") CHECK(cuMemsetD8Async(filled, 1, kBytes, stream));
  }
};

// Keeps kQueued kernels in flight, and counts completed ones with a precision of one kernel.
void keep_busy(Work& work, const std::string& way, double begin, double seconds, bool from_begin) {
  std::deque<CUevent> under_way;
  std::vector<CUevent> idle;
  double first = 0, before = 0, done = 0, window = seconds;
  if (from_begin) sleep_until(begin);
  const double started = now();
  std::vector<double> ends;
  while (true) {
    while (under_way.size() < kQueued) {
      work.launch(way);
      CUevent event = nullptr;
      if (idle.empty())
        CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
      else
        event = idle.back(), idle.pop_back();
      CHECK(cuEventRecord(event, work.stream));
      under_way.push_back(event);
    }
    CHECK(cuEventSynchronize(under_way.front()));
    idle.push_back(under_way.front());
    under_way.pop_front();
    const double time = now();
    if (first == 0) first = time;
    (time < begin ? before : done) += 1;
    ends.push_back(time);
    window = std::max(seconds, time - begin);
    if (time >= begin + seconds) break;  // at least one kernel is counted, even if the program starts late
  }
  CHECK(cuCtxSynchronize());
  report("done", done);
  report("done_before", before);
  report("rate", done / window);
  report("first_ms", (first - started) * 1e3);
  // Report the highest and the lowest rate among ten parts of the window.
  std::vector<double> parts(10);
  for (const double end : ends) {
    if (end >= begin)
      parts[std::min<size_t>(9, static_cast<size_t>((end - begin) / seconds * 10))] += 10 / seconds;
  }
  report("rate_most", *std::max_element(parts.begin(), parts.end()));
  report("rate_least", *std::min_element(parts.begin(), parts.end()));
}

void short_kernels(Work& work, double begin, double seconds) {
  std::vector<double> times;
  sleep_until(begin);
  do {
    const auto start = Clock::now();
    work.launch("plain");
    CHECK(cuStreamSynchronize(work.stream));
    times.push_back(microseconds(start));
    ::usleep(10'000);
  } while (now() < begin + seconds);
  std::sort(times.begin(), times.end());
  report("p50_us", times[times.size() / 2]);
  report("p99_us", times[std::min(times.size() - 1, times.size() * 99 / 100)]);
}

// Copies repeatedly; counts the copies that begin in the window, and at least one.
void copy_memory(Work& work, bool to_device, double begin, double seconds) {
  constexpr size_t kPiece = 256 << 10;
  CUdeviceptr there = 0;
  void* here = nullptr;
  CHECK(cuMemAlloc(&there, kPiece));
  CHECK(cuMemAllocHost(&here, kPiece));
  uint32_t state = 1;
  for (size_t i = 0; i < kPiece / sizeof state; ++i) {  // incompressible data
    state = state * 1664525 + 1013904223;
    static_cast<uint32_t*>(here)[i] = state ^ state >> 16;
  }
  CHECK(cuMemcpyHtoD(there, here, kPiece));
  double bytes = 0, time = now();
  do {
    if (time >= begin) bytes += kPiece;
    CHECK(to_device ? cuMemcpyHtoDAsync(there, here, kPiece, work.stream)
                    : cuMemcpyDtoHAsync(here, there, kPiece, work.stream));
    CHECK(cuStreamSynchronize(work.stream));
    time = now();
  } while (time < begin + seconds || bytes == 0);
  report("MBps", bytes / (time - begin) / 1e6);
}

// Queues 20,000 launches behind a pinned copy of 512 MiB and behind a host function, and 10 launches in each
// of 63 more streams, one of which waits for a value. More launches there would block the caller, as on a
// GPU.
void stand_still(Work& work, double begin, double seconds) {
  constexpr size_t kBytes = 512u << 20, kStreams = 64, kBehind = 20'000;
  work.loops = 1;
  CUdeviceptr there = 0, flag = 0;
  void* here = nullptr;
  CHECK(cuMemAlloc(&there, kBytes));
  CHECK(cuMemAlloc(&flag, 4));
  CHECK(cuMemsetD32(flag, 0, 1));
  CHECK(cuMemAllocHost(&here, kBytes));
  std::vector<CUstream> streams(kStreams + 1);
  for (CUstream& stream : streams) CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuCtxSynchronize());
  const auto launch = [&](CUstream stream, size_t times) {
    work.stream = stream;
    for (size_t i = 0; i < times; ++i) work.launch("plain");
  };
  sleep_until(begin);
  CHECK(cuMemcpyHtoDAsync(there, here, kBytes, streams[kStreams]));
  launch(streams[kStreams], kBehind);
  double until = begin + seconds;
  CHECK(cuLaunchHostFunc(
      streams[0], [](void* until) { sleep_until(*static_cast<double*>(until)); }, &until));
  launch(streams[0], kBehind);
  CHECK(cuStreamWaitValue32(streams[1], flag, 1, CU_STREAM_WAIT_VALUE_EQ));
  for (size_t i = 1; i < kStreams; ++i) launch(streams[i], 10);
  report("queued_s", now() - begin);
  sleep_until(until);
  CHECK(cuStreamWriteValue32(streams[2], flag, 1, 0));
  CHECK(cuCtxSynchronize());
}

// Allocates granules until CUDA_ERROR_OUT_OF_MEMORY, and holds them until all programs have done the same.
void take_memory(double begin, double seconds) {
  double taken = 0;
  sleep_until(begin);
  CUresult result = CUDA_SUCCESS;
  for (CUdeviceptr address = 0; (result = cuMemAlloc(&address, kGranule)) == CUDA_SUCCESS;) ++taken;
  if (result != CUDA_ERROR_OUT_OF_MEMORY) CHECK(result);
  report("late", now() > begin + seconds ? 1 : 0);
  report("granules", taken);
  sleep_until(begin + seconds);
}

void calibrate(Work& work, double wanted_us) {
  work.loops = 100'000;
  double best = 0;
  for (int i = 0; i < 20; ++i) {
    const auto start = Clock::now();
    for (int k = 0; k < 10; ++k) work.launch("plain");
    CHECK(cuStreamSynchronize(work.stream));
    const double each = microseconds(start) / 10;
    best = best == 0 ? each : std::min(best, each);
  }
  report("loops", work.loops * wanted_us / best);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string way = argv[1];
  if (way == "memory" && argc < 4) return 2;
  Work work;
  work.stream = start_cuda();
  if (way == "memory") {
    take_memory(std::atof(argv[2]), std::atof(argv[3]));
    return 0;
  }
  CUmodule module = nullptr;
  CHECK(cuModuleLoadData(&module, kKernel));
  CHECK(cuModuleGetFunction(&work.function, module, "work"));
#if CUDA_VERSION >= 12000
  if (way == "library") {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CHECK(cuLibraryLoadData(&library, kKernel, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CHECK(cuLibraryGetKernel(&kernel, library, "work"));
    work.function = reinterpret_cast<CUfunction>(kernel);
  }
#endif
  CHECK(cuMemAlloc(&work.data, 256));
  CHECK(cuMemAlloc(&work.filled, kBytes));
  CHECK(cuMemsetD8(work.data, 0, 256));
  if (way == "calibrate") {
    calibrate(work, std::atof(argv[2]));
    return 0;
  }
  if (argc < 5) return 2;
  work.loops = static_cast<unsigned>(std::atof(argv[2]));
  if (way == "graph") work.capture();
  work.launch("plain");  // warm-up: one-time initialization
  CHECK(cuStreamSynchronize(work.stream));
  const double begin = std::atof(argv[3]), seconds = std::atof(argv[4]);
  if (way == "short")
    short_kernels(work, begin, seconds);
  else if (way == "stuck")
    stand_still(work, begin, seconds);
  else if (way == "to_device" || way == "to_host")
    copy_memory(work, way == "to_device", begin, seconds);
  else if (way == "late")
    keep_busy(work, "plain", begin, seconds, true);
  else
    keep_busy(work, way, begin, seconds, false);
  return 0;
}
