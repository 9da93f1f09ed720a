// Tests green contexts: resources, the multiprocessors that kernels run on, and state shared with the primary
// context.
#include <dirent.h>

#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/server/softgpu/runtime/fixture.h"
#include "tests/server/softgpu/runtime/kernels.h"

#if CUDA_VERSION >= 13000
namespace {

// `blocks` blocks that each compute for about 100 microseconds.
constexpr char kBusy[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry busy(.param .u64 out) {
  .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p<2>;
  ld.param.u64 %d1, [out];
  mov.u32 %r1, 0;
  mov.u32 %r2, 1;
again:
  mad.lo.s32 %r2, %r2, 1664525, 1013904223;
  shr.u32 %r3, %r2, 15;  // steps that no compiler folds into one
  xor.b32 %r2, %r2, %r3;
  add.u32 %r1, %r1, 1;
  setp.lt.u32 %p1, %r1, 100000;
  @%p1 bra again;
  mov.u32 %r3, %ctaid.x;
  mul.wide.u32 %d2, %r3, 4;
  add.s64 %d3, %d1, %d2;
  st.global.u32 [%d3], %r2;
  ret;
}
)";

constexpr unsigned kBlocks = 400;

// CPU time per thread of softgpu's executors, in nanoseconds.
std::map<std::string, uint64_t> executor_time() {
  std::map<std::string, uint64_t> times;
  DIR* tasks = opendir("/proc/self/task");
  REQUIRE(tasks != nullptr);
  while (const dirent* task = readdir(tasks)) {
    const std::string path = std::string("/proc/self/task/") + task->d_name;
    std::string name;
    uint64_t time = 0;
    std::ifstream(path + "/comm") >> name;
    std::ifstream(path + "/schedstat") >> time;
    if (name == "softgpu") times[task->d_name] = time;
  }
  closedir(tasks);
  return times;
}

struct Green {
  Green(CUdevResource* resources, unsigned count, CUdevice device = 0) {
    CUdevResourceDesc descriptor = nullptr;
    REQUIRE_OK(cuDevResourceGenerateDesc(&descriptor, resources, count));
    REQUIRE_OK(cuGreenCtxCreate(&handle, descriptor, device, CU_GREEN_CTX_DEFAULT_STREAM));
    REQUIRE_OK(cuCtxFromGreenCtx(&context, handle));
  }
  ~Green() {
    if (handle != nullptr) cuGreenCtxDestroy(handle);
  }
  CUgreenCtx handle = nullptr;
  CUcontext context = nullptr;
};

// The device's three multiprocessors, each as a group, and its primary context.
struct GreenFixture {
  GreenFixture() {
    REQUIRE_OK(cuInit(0));
    REQUIRE_OK(cuDevicePrimaryCtxRetain(&primary, 0));
    REQUIRE_OK(cuCtxSetCurrent(primary));
    REQUIRE_OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    unsigned groups = 3;
    REQUIRE_OK(cuDevSmResourceSplitByCount(each.data(), &groups, &all, nullptr, 0, 1));
    REQUIRE(groups == 3);
  }
  ~GreenFixture() {
    cuCtxSetCurrent(nullptr);
    cuDevicePrimaryCtxRelease_v2(0);
  }
  CUfunction load(const char* image, const char* name) {
    CUmodule module = nullptr;
    CUfunction found = nullptr;
    REQUIRE_OK(cuModuleLoadData(&module, image));
    REQUIRE_OK(cuModuleGetFunction(&found, module, name));
    return found;
  }
  CUcontext primary = nullptr;
  CUdevResource all{};
  std::array<CUdevResource, 3> each{};
};

}  // namespace

TEST_CASE_METHOD(GreenFixture, "splits a device's multiprocessors into equal groups and a remainder") {
  CHECK(all.type == CU_DEV_RESOURCE_TYPE_SM);
  CHECK(all.sm.smCount == 3);
  CHECK(all.sm.minSmPartitionSize == 1);
  CHECK(all.sm.smCoscheduledAlignment == 1);
  CHECK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_INVALID) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CHECK(cuDeviceGetDevResource(9, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_DEVICE);

  unsigned groups = 0;
  REQUIRE_OK(cuDevSmResourceSplitByCount(nullptr, &groups, &all, nullptr, 0, 2));
  CHECK(groups == 1);
  CUdevResource pair{}, rest{};
  groups = 1;
  REQUIRE_OK(cuDevSmResourceSplitByCount(&pair, &groups, &all, &rest, 0, 2));
  CHECK(pair.sm.smCount == 2);
  CHECK(rest.sm.smCount == 1);
  groups = 1;
  REQUIRE_OK(cuDevSmResourceSplitByCount(&pair, &groups, &all, &rest, 0, 3));
  CHECK(rest.type == CU_DEV_RESOURCE_TYPE_INVALID);

  CHECK(cuDevSmResourceSplitByCount(&pair, &groups, &all, nullptr, 0, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDevSmResourceSplitByCount(&pair, nullptr, &all, nullptr, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  // The result of a split cannot be split again.
  CHECK(cuDevSmResourceSplitByCount(&pair, &groups, &each[0], nullptr, 0, 1) ==
        CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CUdevResource nothing{};
  CHECK(cuDevSmResourceSplitByCount(&pair, &groups, &nothing, nullptr, 0, 1) ==
        CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CUdevResource made_up = all;
  std::memset(made_up._internal_padding, 0x5a, sizeof made_up._internal_padding);
  CHECK(cuDevSmResourceSplitByCount(&pair, &groups, &made_up, nullptr, 0, 1) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_METHOD(GreenFixture, "a descriptor combines only groups of one split") {
  CUdevResourceDesc descriptor = nullptr;
  CHECK(cuDevResourceGenerateDesc(&descriptor, nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
  CUdevResource again{};
  unsigned groups = 1;
  REQUIRE_OK(cuDevSmResourceSplitByCount(&again, &groups, &all, nullptr, 0, 1));
  CUdevResource mixed[] = {each[1], again};
  CHECK(cuDevResourceGenerateDesc(&descriptor, mixed, 2) == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);

  CUdevResource outer[] = {each[0], each[2]};
  const Green green(outer, 2);
  CUdevResource its{};
  REQUIRE_OK(cuGreenCtxGetDevResource(green.handle, &its, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(its.sm.smCount == 2);
  REQUIRE_OK(cuCtxGetDevResource(green.context, &its, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(its.sm.smCount == 2);
  REQUIRE_OK(cuCtxGetDevResource(primary, &its, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(its.sm.smCount == 3);
  // A green context's own resource can be split further.
  REQUIRE_OK(cuGreenCtxGetDevResource(green.handle, &its, CU_DEV_RESOURCE_TYPE_SM));
  groups = 1;
  REQUIRE_OK(cuDevSmResourceSplitByCount(&again, &groups, &its, nullptr, 0, 1));
  CHECK(again.sm.smCount == 1);

  CHECK(cuDevResourceGenerateDesc(&descriptor, each.data(), 1) == CUDA_SUCCESS);
  CUgreenCtx none = nullptr;
  CHECK(cuGreenCtxCreate(&none, descriptor, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGreenCtxCreate(&none, descriptor, 1, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGreenCtxCreate(&none, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_METHOD(GreenFixture, "a green context's kernels run on its multiprocessors only") {
  const CUfunction busy = load(kBusy, "busy");
  CUdeviceptr out = 0;
  REQUIRE_OK(cuMemAlloc_v2(&out, kBlocks * 4));
  void* parameters[] = {&out};
  const auto threads_used = [&](CUstream stream) {
    const auto before = executor_time();
    REQUIRE_OK(cuLaunchKernel(busy, kBlocks, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    REQUIRE_OK(cuStreamSynchronize(stream));
    auto after = executor_time();
    uint64_t all_time = 0, used = 0;
    for (auto& [thread, time] : after) all_time += time -= before.contains(thread) ? before.at(thread) : 0;
    for (const auto& [thread, time] : after) used += time > all_time / 10;  // more than waking up takes
    return used;
  };
  CHECK(threads_used(nullptr) >= 1);  // all three, unless the host is busy
  std::vector<uint32_t> expected(kBlocks), values(kBlocks);
  REQUIRE_OK(cuMemcpyDtoH_v2(expected.data(), out, kBlocks * 4));
  REQUIRE_OK(cuMemsetD8_v2(out, 0, kBlocks * 4));

  const Green one(each.data() + 1, 1), two(each.data() + 1, 2);
  REQUIRE_OK(cuCtxSetCurrent(one.context));
  CHECK(threads_used(nullptr) == 1);
  REQUIRE_OK(cuMemcpyDtoH_v2(values.data(), out, kBlocks * 4));
  CHECK(values == expected);
  CUstream stream = nullptr, other = nullptr;
  REQUIRE_OK(cuStreamCreate(&stream, 0));
  CHECK(threads_used(stream) == 1);
  // The current context does not matter.
  REQUIRE_OK(cuGreenCtxStreamCreate(&other, two.handle, CU_STREAM_NON_BLOCKING, 0));
  CHECK(threads_used(other) <= 2);
  CHECK(cuGreenCtxStreamCreate(&other, two.handle, 0, 0) == CUDA_ERROR_INVALID_VALUE);

  // A graph's kernels run where they were captured.
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  REQUIRE_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  REQUIRE_OK(cuLaunchKernel(busy, kBlocks, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
  REQUIRE_OK(cuStreamEndCapture(stream, &graph));
  REQUIRE_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  const auto before = executor_time();
  REQUIRE_OK(cuGraphLaunch(exec, stream));
  REQUIRE_OK(cuStreamSynchronize(stream));
  int used = 0;
  for (const auto& [thread, time] : executor_time()) used += time - before.at(thread) > 2'000'000;
  CHECK(used == 1);
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);

  // Occupancy functions use the green context's multiprocessors.
  int grid = 0, block = 0, whole = 0;
  REQUIRE_OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, busy, nullptr, 0, 0));
  REQUIRE_OK(cuCtxSetCurrent(primary));
  REQUIRE_OK(cuOccupancyMaxPotentialBlockSize(&whole, &block, busy, nullptr, 0, 0));
  CHECK(whole == 3 * grid);
  const auto cooperative = [&](CUstream on, unsigned blocks) {
    return cuLaunchCooperativeKernel(busy, blocks, 1, 1, 1024, 1, 1, 0, on, parameters);
  };
  CHECK(cooperative(other, 4) == CUDA_SUCCESS);
  CHECK(cooperative(other, 5) == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  REQUIRE_OK(cuStreamSynchronize(other));
  REQUIRE_OK(cuMemFree_v2(out));
}

TEST_CASE_METHOD(GreenFixture,
                 "a green context has its own streams and shares everything else with the primary context") {
  const CUfunction fill = load(kKernels, "fill");
  const Green green(each.data(), 1);
  CUcontext context = nullptr;
  CUgreenCtx its = nullptr;
  CUstream own = nullptr, plain = nullptr;
  REQUIRE_OK(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
  REQUIRE_OK(cuGreenCtxStreamCreate(&own, green.handle, CU_STREAM_NON_BLOCKING, 0));
  REQUIRE_OK(cuStreamGetCtx_v2(own, &context, &its));
  CHECK(context == primary);
  CHECK(its == green.handle);
  REQUIRE_OK(cuStreamGetCtx(own, &context));
  CHECK(context == green.context);
  REQUIRE_OK(cuStreamGetGreenCtx(plain, &its));
  CHECK(its == nullptr);
  REQUIRE_OK(cuStreamGetCtx_v2(plain, &context, &its));
  CHECK(context == primary);
  CHECK(its == nullptr);

  REQUIRE_OK(cuCtxSetCurrent(green.context));
  REQUIRE_OK(cuStreamGetGreenCtx(nullptr, &its));
  CHECK(its == green.handle);
  unsigned long long id = 0, same = 0;
  REQUIRE_OK(cuGreenCtxGetId(nullptr, &id));
  REQUIRE_OK(cuGreenCtxGetId(green.handle, &same));
  CHECK(id == same);
  CUdeviceptr memory = 0;
  REQUIRE_OK(cuMemAlloc_v2(&memory, 4096));
  int value = 77;
  void* parameters[] = {&memory, &value};
  REQUIRE_OK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, own, parameters, nullptr));

  // An event of the primary context completes after the green context's work.
  CUevent event = nullptr;
  REQUIRE_OK(cuEventCreate(&event, 0));
  REQUIRE_OK(cuGreenCtxRecordEvent(green.handle, event));
  REQUIRE_OK(cuEventSynchronize(event));
  int read = 0;
  REQUIRE_OK(cuMemcpyDtoH_v2(&read, memory, 4));
  CHECK(read == 77);

  // The primary context waits for its green contexts, and those for events that they are told to wait for.
  REQUIRE_OK(cuCtxSetCurrent(primary));
  CUdeviceptr flag = 0;
  REQUIRE_OK(cuMemAlloc_v2(&flag, 4));
  REQUIRE_OK(cuMemsetD32_v2(flag, 0, 1));
  REQUIRE_OK(cuStreamWaitValue32_v2(plain, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
  REQUIRE_OK(cuEventRecord(event, plain));
  REQUIRE_OK(cuGreenCtxWaitEvent(green.handle, event));
  REQUIRE_OK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, own, parameters, nullptr));
  CHECK(cuStreamQuery(own) == CUDA_ERROR_NOT_READY);
  CUstream release = nullptr;
  REQUIRE_OK(cuStreamCreate(&release, CU_STREAM_NON_BLOCKING));
  REQUIRE_OK(cuStreamWriteValue32_v2(release, flag, 1, 0));
  REQUIRE_OK(cuCtxSynchronize());
  CHECK(cuStreamQuery(own) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);

  // Memory allocated in a green context outlives it.
  CHECK(cuCtxDestroy_v2(green.context) == CUDA_ERROR_INVALID_CONTEXT);
  {
    const Green brief(each.data() + 1, 1);
    REQUIRE_OK(cuCtxSetCurrent(brief.context));
    REQUIRE_OK(cuMemFree_v2(memory));
    REQUIRE_OK(cuMemAlloc_v2(&memory, 4096));
    REQUIRE_OK(cuCtxSetCurrent(primary));
  }
  REQUIRE_OK(cuMemsetD32_v2(memory, 5, 1));
  REQUIRE_OK(cuMemcpyDtoH_v2(&read, memory, 4));
  CHECK(read == 5);
}

TEST_CASE_METHOD(GreenFixture, "a green context shares errors and the end of its primary context") {
  const CUfunction stray = load(kKernels, "stray");
  Green green(each.data(), 1);
  CUdeviceptr memory = 0;
  REQUIRE_OK(cuCtxSetCurrent(green.context));
  REQUIRE_OK(cuMemAlloc_v2(&memory, 4096));
  void* parameters[] = {&memory};
  REQUIRE_OK(cuLaunchKernel(stray, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE_OK(cuCtxSetCurrent(primary));
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE_OK(cuDevicePrimaryCtxReset_v2(0));
  CUevent event = nullptr;
  CHECK(cuGreenCtxRecordEvent(green.handle, event) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  REQUIRE_OK(cuCtxSetCurrent(green.context));
  CHECK(cuCtxSynchronize() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  REQUIRE_OK(cuGreenCtxDestroy(green.handle));
  CHECK(cuGreenCtxDestroy(green.handle) == CUDA_ERROR_INVALID_CONTEXT);
  green.handle = nullptr;

  // A green context itself keeps the primary context alive.
  REQUIRE_OK(cuCtxSetCurrent(nullptr));
  unsigned flags = 0;
  int active = 0;
  {
    const Green other(each.data(), 1);
    cuDevicePrimaryCtxRelease_v2(0);
    REQUIRE_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 1);
  }
  REQUIRE_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(active == 0);
  REQUIRE_OK(cuDevicePrimaryCtxRetain(&primary, 0));
}
#endif
