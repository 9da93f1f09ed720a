// Tests that driver calls are charged the costs of SOFTGPU_COSTS. Each cost is well above the time that the
// call itself takes; only lower bounds are checked.
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/server/softgpu/runtime/kernels.h"
#include "tests/server/softgpu/runtime/queue_fixture.h"

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kCall{20};  // each cost per call; kUnit: each cost per MiB or node
constexpr milliseconds kUnit{10};
constexpr uint64_t kMiB = 1 << 20;

// Writes the file of costs before cuInit reads it.
struct CostsFile {
  CostsFile() {
    std::ofstream out(path);
#define SOFTGPU_COST(name, unit, ...) \
  out << #name " = " << 1000 * (std::string_view(#unit) == "call" ? kCall : kUnit).count() << "\n";
#include "server/softgpu/runtime/costs.def"
#undef SOFTGPU_COST
    setenv("SOFTGPU_COSTS", path.c_str(), 1);
  }
  ~CostsFile() { std::filesystem::remove(path); }
  const std::string path =
      std::filesystem::temp_directory_path() / ("softgpu-costs-" + std::to_string(getpid()) + ".toml");
} file;

template <class Call>
Clock::duration time_of(const Call& call) {
  const auto begin = Clock::now();
  REQUIRE(call() == CUDA_SUCCESS);
  return Clock::now() - begin;
}

#define CHECK_COST(least, call) CHECK(time_of([&] { return call; }) >= (least))

CUmemAllocationProp on_device() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return properties;
}

}  // namespace

TEST_CASE("creating and destroying a context is charged") {
  REQUIRE_OK(cuInit(0));
  CUcontext context = nullptr;
  CHECK_COST(kCall, cuCtxCreate_v2(&context, 0, 0));
  CHECK_COST(kCall, cuCtxDestroy_v2(context));
  CHECK_COST(kCall, cuDevicePrimaryCtxRetain(&context, 0));
  CHECK_COST(kCall, cuDevicePrimaryCtxReset_v2(0));
  CHECK_COST(kCall, cuDevicePrimaryCtxRetain(&context, 0));
  REQUIRE_OK(cuDevicePrimaryCtxRelease_v2(0));
  CHECK_COST(kCall, cuDevicePrimaryCtxRelease_v2(0));
}

TEST_CASE_METHOD(ContextFixture, "device memory is charged per call and per MiB") {
  CUdeviceptr memory = 0;
  CHECK_COST(kCall + 2 * kUnit, cuMemAlloc_v2(&memory, 2 * kMiB));
  CHECK_COST(kCall + 2 * kUnit, cuMemFree_v2(memory));
  CHECK_COST(kCall + 2 * kUnit, cuMemAllocManaged(&memory, 2 * kMiB, CU_MEM_ATTACH_GLOBAL));
  CHECK_COST(kCall + 2 * kUnit, cuMemFree_v2(memory));
}

TEST_CASE_METHOD(ContextFixture,
                 "virtual memory management is charged per call, and per MiB except for mappings") {
  constexpr uint64_t kSize = 4 * kMiB;
  const CUmemAllocationProp properties = on_device();
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE_OK(cuMemAddressReserve(&address, kSize, 0, 0, 0));
  CHECK_COST(kCall + 4 * kUnit, cuMemCreate(&handle, kSize, &properties, 0));
  CHECK_COST(kCall, cuMemMap(address, kSize, 0, handle, 0));
  CHECK_COST(kCall + 4 * kUnit, cuMemSetAccess(address, kSize, &access, 1));
  CHECK_COST(kCall + 4 * kUnit, cuMemUnmap(address, kSize));
  CHECK_COST(kCall + 4 * kUnit, cuMemRelease(handle));
  REQUIRE_OK(cuMemAddressFree(address, kSize));
}

TEST_CASE_METHOD(ContextFixture, "page-locked host memory is charged per call and per MiB") {
  void* pinned = nullptr;
  CHECK_COST(kCall + 2 * kUnit, cuMemHostAlloc(&pinned, 2 * kMiB, 0));
  CHECK_COST(kCall + 2 * kUnit, cuMemFreeHost(pinned));
  std::vector<char> pageable(2 * kMiB);
  CHECK_COST(kCall + 2 * kUnit, cuMemHostRegister_v2(pageable.data(), pageable.size(), 0));
  CHECK_COST(kCall + 2 * kUnit, cuMemHostUnregister(pageable.data()));
}

TEST_CASE_METHOD(ContextFixture, "loading and compiling code is charged, and each kernel's first load") {
  // Loaded before, so that compiling it later takes no time.
  CUmodule before = nullptr, module = nullptr;
  CUfunction count = nullptr;
  REQUIRE_OK(cuModuleLoadData(&before, kKernels));
  CHECK_COST(2 * kCall, cuModuleLoadData(&module, kKernels));  // module_load and jit
  CUlibrary library = nullptr;
  CHECK_COST(2 * kCall, cuLibraryLoadData(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  REQUIRE_OK(cuModuleGetFunction(&count, before, "count"));
  REQUIRE_OK(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));  // compiles it
  REQUIRE_OK(cuModuleGetFunction(&count, module, "count"));
  CHECK_COST(2 * kCall, cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                                       nullptr));  // kernel_load and launch
  CHECK_COST(kCall, cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
}

TEST_CASE_METHOD(QueueFixture, "streams, events and enqueued operations are charged to the caller") {
  CUstream stream = nullptr;
  CUevent timed = nullptr, plain = nullptr;
  CHECK_COST(kCall, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK_COST(kCall, cuEventCreate(&timed, CU_EVENT_DEFAULT));
  CHECK_COST(kCall, cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
  CHECK_COST(kCall, cuEventRecord(timed, stream));
  CHECK_COST(kCall, cuEventRecord(plain, stream));
  CHECK_COST(kCall, cuEventQuery(plain));
  CHECK_COST(kCall, cuEventSynchronize(plain));
  CHECK_COST(kCall, cuStreamQuery(stream));
  CHECK_COST(kCall, cuStreamWaitEvent(second, plain, 0));  // complete
  park_first();
  REQUIRE_OK(cuEventRecord(plain, first));
  CHECK_COST(kCall, cuStreamWaitEvent(second, plain, 0));
  release();
  CHECK_COST(kCall, cuMemcpyDtoDAsync_v2(memory, memory + 64, 64, stream));
  CHECK_COST(kCall, cuMemsetD8Async(memory, 0, 64, stream));
  CHECK_COST(kCall, cuLaunchHostFunc(
                        stream, [](void*) {}, nullptr));
  CHECK_COST(kCall, cuCtxRecordEvent(context, plain));
}

TEST_CASE_METHOD(QueueFixture, "a thread that waited is charged a wake-up") {
  park_first();
  BlockedCall synchronise(context, [&] { return cuCtxSynchronize(); });
  CHECK(synchronise.blocks());
  const auto begin = Clock::now();
  release();
  CHECK(synchronise.result() == CUDA_SUCCESS);
  CHECK(Clock::now() - begin >= kCall);
  // A synchronous copy is charged for the copy and for the wake-up.
  char bytes[64];
  CHECK_COST(2 * kCall, cuMemcpyDtoH_v2(bytes, memory, sizeof bytes));
}

TEST_CASE_METHOD(QueueFixture,
                 "enqueueing is charged with the context's lock held, so that other threads block") {
  // 4 threads that enqueue into separate streams must run one after the other.
  std::vector<CUstream> streams(4);
  for (CUstream& stream : streams) REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const auto begin = Clock::now();
  std::vector<std::unique_ptr<BlockedCall>> calls;
  for (size_t i = 0; i < streams.size(); ++i) {
    calls.push_back(std::make_unique<BlockedCall>(
        context, [this, i, stream = streams[i]] { return cuMemsetD8Async(memory + i, 0, 1, stream); }));
  }
  for (auto& call : calls) CHECK(call->result() == CUDA_SUCCESS);
  CHECK(Clock::now() - begin >= 4 * kCall);
}

TEST_CASE_METHOD(QueueFixture, "graphs are charged per call and per node") {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  REQUIRE_OK(cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (int i = 0; i < 5; ++i) REQUIRE_OK(cuMemsetD8Async(memory, 0, 1, first));
  REQUIRE_OK(cuStreamEndCapture(first, &graph));
  CHECK_COST(kCall + 5 * kUnit, cuGraphInstantiateWithFlags(&exec, graph, 0));
  CHECK_COST(kCall + 5 * kUnit, cuGraphLaunch(exec, first));
}
