// gpupool-bench-step: the driver calls of a training step: 300 launches of small kernels, 30 asynchronous
// copies, 20 allocations and frees, and 4 synchronous waits. It uses only the driver API, and is run directly
// and through the pool.
//
//     gpupool-bench-step STEPS [LOOPS]    LOOPS: length of a kernel
//
// A step has ten layers. Each has two buffers, copies its inputs on a second stream while the previous layer
// runs, and makes thirty launches, which increment a counter in device memory. The host checks the counter's
// value.
#include <cstring>

#include "tests/bench/program.h"

namespace {

using namespace gpupool::bench;

// Each thread repeats a multiplication `loops` times on its element; the first thread increments the counter.
constexpr const char* kKernel = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .entry work(.param .u64 data, .param .u64 counter, .param .u32 loops)
{
  .reg .pred %p<3>;
  .reg .b32 %r<8>;
  .reg .b64 %d<8>;
  .reg .f32 %f<4>;
  ld.param.u64 %d1, [data];
  ld.param.u64 %d2, [counter];
  ld.param.u32 %r1, [loops];
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d2, %d2;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  mul.wide.u32 %d3, %r5, 4;
  add.s64 %d4, %d1, %d3;
  ld.global.f32 %f1, [%d4];
again:
  fma.rn.f32 %f1, %f1, 0f3F7FFFF0, 0f3A000000;
  sub.u32 %r1, %r1, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra again;
  st.global.f32 [%d4], %f1;
  setp.ne.u32 %p2, %r5, 0;
  @%p2 bra end;
  ld.global.u32 %r6, [%d2];
  add.u32 %r6, %r6, 1;
  st.global.u32 [%d2], %r6;
end:
  ret;
}
)";

constexpr unsigned kLayers = 10, kLaunchesPerLayer = 30, kBlocks = 4, kThreads = 64;
constexpr size_t kInputBytes[] = {4096, 65536, 4096};     // copied to the device per layer
constexpr size_t kBufferBytes[] = {256 * 1024, 1 << 20};  // allocated and freed per layer
constexpr size_t kInputs = 65536 + 2 * 4096;

struct Step {
  CUfunction work = nullptr;
  CUstream compute = nullptr, copies = nullptr;
  CUevent copied[2] = {}, layer = nullptr;
  CUdeviceptr inputs = 0, counter = 0;
  char* host_inputs = nullptr;
  unsigned* host_counts = nullptr;
  unsigned loops = 0;
  unsigned launched = 0;

  void expect(unsigned got, const char* where) const {
    if (got == launched) return;
    std::fprintf(stderr, "gpupool-bench-step: %s: %u launches counted, not %u\n", where, got, launched);
    std::exit(1);
  }
  void copy_inputs(unsigned of_layer) const;
  void run();
};

void Step::copy_inputs(unsigned of_layer) const {
  size_t at = of_layer * kInputs;
  for (size_t i = 0; i < std::size(kInputBytes); at += kInputBytes[i++]) {
    if (of_layer == 0 && i == 0) continue;  // the thirtieth copy is the one to the host
    CHECK(cuMemcpyHtoDAsync(inputs + at, host_inputs + at, kInputBytes[i], copies));
  }
  CHECK(cuEventRecord(copied[of_layer % 2], copies));
}

void Step::run() {
  copy_inputs(0);
  for (unsigned i = 0; i < kLayers; ++i) {
    CUdeviceptr buffers[2] = {};
    for (int b = 0; b < 2; ++b) CHECK(cuMemAlloc(&buffers[b], kBufferBytes[b]));
    if (i + 1 < kLayers) copy_inputs(i + 1);
    CHECK(cuStreamWaitEvent(compute, copied[i % 2], 0));
    for (unsigned k = 0; k < kLaunchesPerLayer; ++k) {
      CUdeviceptr data = k % 3 ? buffers[k % 2] : inputs + i * kInputs;
      void* parameters[] = {&data, &counter, &loops};
      CHECK(cuLaunchKernel(work, kBlocks, 1, 1, kThreads, 1, 1, 0, compute, parameters, nullptr));
      ++launched;
    }
    if (i == 2) {  // first wait: an event, as in a data loader
      CHECK(cuEventRecord(layer, compute));
      CHECK(cuEventSynchronize(layer));
    }
    if (i == 5) {  // second wait: a synchronous copy, as for the loss
      unsigned count = 0;
      CHECK(cuEventRecord(layer, compute));
      CHECK(cuStreamWaitEvent(nullptr, layer, 0));
      CHECK(cuMemcpyDtoH(&count, counter, sizeof count));
      expect(count, "the loss");
    }
    if (i == 8) CHECK(cuStreamSynchronize(copies));  // third wait: before the inputs are overwritten
    for (const CUdeviceptr buffer : buffers) CHECK(cuMemFree(buffer));
  }
  CHECK(cuMemcpyDtoHAsync(host_counts, counter, sizeof *host_counts, compute));
  CHECK(cuStreamSynchronize(compute));  // fourth wait: the end of the step
  expect(*host_counts, "the step");
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 20;
  Step step;
  step.loops = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 180;
  step.compute = start_cuda();
  CUmodule module = nullptr;
  CHECK(cuModuleLoadData(&module, kKernel));
  CHECK(cuModuleGetFunction(&step.work, module, "work"));
  CHECK(cuStreamCreate(&step.copies, CU_STREAM_NON_BLOCKING));
  for (CUevent& event : step.copied) CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CHECK(cuEventCreate(&step.layer, CU_EVENT_DISABLE_TIMING));
  CHECK(cuMemAlloc(&step.inputs, kLayers * kInputs));
  CHECK(cuMemAlloc(&step.counter, sizeof(unsigned)));
  CHECK(cuMemsetD32(step.counter, 0, 1));
  void* host = nullptr;
  CHECK(cuMemHostAlloc(&host, kLayers * kInputs, 0));
  std::memset(host, 0, kLayers * kInputs);
  step.host_inputs = static_cast<char*>(host);
  CHECK(cuMemHostAlloc(&host, sizeof(unsigned), 0));
  step.host_counts = static_cast<unsigned*>(host);
  for (int i = 0; i < 3; ++i) step.run();
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    const auto begin = Clock::now();
    step.run();
    times.push_back(microseconds(begin));
  }
  report("step_us", middle(times));
  return 0;
}
