// Helpers shared by the probes: a context, kernels, a held stream, threads for calls that may block.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "probe.h"

namespace probe {

const char* const kKernels = R"(
.version 7.0
.target sm_75
.address_size 64

.visible .entry nothing(.param .u64 data) { ret; }

.visible .entry big_local(.param .u64 data)
{
  .local .align 4 .b8 stack[16384];
  .reg .b32 %r<4>;
  .reg .b64 %d<4>;
  ld.param.u64 %d1, [data];
  cvta.to.global.u64 %d1, %d1;
  ld.global.u32 %r1, [%d1];
  and.b32 %r2, %r1, 16380;
  cvt.u64.u32 %d2, %r2;
  mov.u64 %d3, stack;
  add.s64 %d3, %d3, %d2;
  st.local.u32 [%d3], %r1;
  ld.local.u32 %r3, [%d3];
  st.global.u32 [%d1], %r3;
  ret;
}

// data[multiprocessor] = 1, by blocks that stay long enough to be spread over all of them.
.visible .entry where(.param .u64 data)
{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .b64 %d<3>;
  ld.param.u64 %d1, [data];
  cvta.to.global.u64 %d1, %d1;
  mov.u32 %r1, %smid;
  mul.wide.u32 %d2, %r1, 4;
  add.s64 %d1, %d1, %d2;
  mov.u32 %r2, 1;
  st.volatile.global.u32 [%d1], %r2;
  mov.u32 %r3, 200;
again:
  ld.volatile.global.u32 %r2, [%d1];
  sub.u32 %r3, %r3, 1;
  setp.ne.u32 %p1, %r3, 0;
  @%p1 bra again;
  ret;
}
)";

const char* const kLateKernel = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry late(.param .u64 data) { ret; }
)";

std::string name_of(CUresult result) {
  const char* name = nullptr;
  return cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "error " + std::to_string(result);
}

void check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) throw Failure(std::string(call) + ": " + name_of(result));
}

Device::Device() {
  step("cuInit");
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  step("cuDevicePrimaryCtxRetain");
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  step("probe");
}

int Device::attribute(CUdevice_attribute which) const {
  int value = 0;
  return cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : -1;
}

size_t Device::free() const {
  size_t free = 0, total = 0;
  CHECK(cuMemGetInfo(&free, &total));
  return free;
}

Kernels::Kernels() {
  CHECK(cuModuleLoadData(&module, kKernels));
}

CUfunction Kernels::function(const char* name) const {
  CUfunction found = nullptr;
  CHECK(cuModuleGetFunction(&found, module, name));
  return found;
}

Word::Word() {
  CHECK(cuMemHostAlloc(reinterpret_cast<void**>(&host), 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  CHECK(cuMemHostGetDevicePointer(&device, host, 0));
  store(0);
}
void Word::store(uint32_t value) const {
  std::atomic_ref(*host).store(value, std::memory_order_release);
}
uint32_t Word::load() const {
  return std::atomic_ref(*host).load(std::memory_order_acquire);
}

Parked::Parked() {
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuStreamWaitValue32(stream, word.device, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

struct Caller::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<CUresult()> call;
  bool ready = false, done = false;
  CUresult result = CUDA_SUCCESS;
  double took = 0;
};

Caller::Caller(CUcontext context) : state_(std::make_shared<State>()) {
  std::thread([state = state_, context] {
    if (context) cuCtxSetCurrent(context);
    std::unique_lock lock(state->mutex);
    state->ready = true;
    state->changed.notify_all();
    while (true) {
      state->changed.wait(lock, [&] { return state->call && !state->done; });
      lock.unlock();
      const auto begin = Clock::now();
      const CUresult result = state->call();
      const double took = microseconds(begin);
      lock.lock();
      state->result = result;
      state->took = took;
      state->done = true;
      state->changed.notify_all();
    }
  }).detach();
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->ready; });
}

void Caller::begin(std::function<CUresult()> call) {
  const std::lock_guard lock(state_->mutex);
  state_->call = std::move(call);
  state_->done = false;
  state_->changed.notify_all();
}

std::optional<double> Caller::wait(milliseconds patience) {
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, patience, [&] { return state_->done; })) return std::nullopt;
  return state_->took;
}

CUresult Caller::result() const {
  const std::lock_guard lock(state_->mutex);
  return state_->result;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool eventually(const std::function<bool()>& condition, milliseconds patience) {
  const auto stop = Clock::now() + patience;
  while (!condition()) {
    if (Clock::now() > stop) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

std::optional<double> used_bytes() {
  struct Memory {
    unsigned long long total, free, used;
  };
  void* const nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!nvml) return std::nullopt;
  const auto init = reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"));
  const auto handle =
      reinterpret_cast<int (*)(unsigned, void**)>(dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"));
  const auto memory = reinterpret_cast<int (*)(void*, Memory*)>(dlsym(nvml, "nvmlDeviceGetMemoryInfo"));
  void* device = nullptr;
  Memory info{};
  if (!init || !handle || !memory || init() || handle(0, &device) || memory(device, &info))
    return std::nullopt;
  return static_cast<double>(info.used);
}

}  // namespace probe
