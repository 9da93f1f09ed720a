// A program that has objects of every kind, and finds each of them unchanged in every round.
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

constexpr unsigned kItems = 4096;
constexpr size_t kBytes = kItems * sizeof(unsigned);

// Memory of cuMemCreate, mapped twice as large as it is.
struct Mapped {
  explicit Mapped(CUdevice device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    OK(cuMemGetAllocationGranularity(&size, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUmemGenericAllocationHandle memory = 0;
    OK(cuMemAddressReserve(&address, 2 * size, 0, 0, 0));
    OK(cuMemCreate(&memory, size, &properties, 0));
    OK(cuMemMap(address, size, 0, memory, 0));
    OK(cuMemRelease(memory));  // the mapping keeps it
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemSetAccess(address, size, &access, 1));
  }
  CUdeviceptr address = 0;
  size_t size = 0;
};

// Memory of cuMemCreate that is mapped only to be looked at.
struct Aside {
  explicit Aside(const Mapped& other) : size(other.size) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    OK(cuMemCreate(&memory, size, &properties, 0));
    look(other, [&](CUdeviceptr at) { OK(cuMemsetD32(at, 11, size / sizeof(unsigned))); });
  }
  // The second half of the range of `other` is free.
  template <class See>
  void look(const Mapped& other, const See& see) const {
    const CUdeviceptr at = other.address + size;
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemMap(at, size, 0, memory, 0));
    OK(cuMemSetAccess(at, size, &access, 1));
    see(at);
    OK(cuCtxSynchronize());  // the memory must not be in use
    OK(cuMemUnmap(at, size));
  }
  CUmemGenericAllocationHandle memory = 0;
  const size_t size;
};

// A linker that has one input, and gets another one.
struct Link {
  Link() {
    OK(cuLinkCreate(0, nullptr, nullptr, &state));
    add(kAnswer);
  }
  void add(const char* text) const {
    OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(text), std::strlen(text) + 1, "input", 0,
                     nullptr, nullptr));
  }
  void complete() const {
    add(kAsks);
    void* image = nullptr;
    size_t size = 0;
    OK(cuLinkComplete(state, &image, &size));
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    CUdeviceptr out = 0;
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&kernel, module, "asks"));
    OK(cuMemAlloc(&out, sizeof(unsigned)));
    void* parameters[] = {&out};
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    EXPECT(download<unsigned>(out, 1)[0] == 42);
    OK(cuMemFree(out));
    OK(cuModuleUnload(module));
    OK(cuLinkDestroy(state));
  }
  static constexpr const char* kAnswer = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .func (.param .b32 result) answer()
{
  .reg .b32 %r<2>;
  mov.u32 %r1, 42;
  st.param.b32 [result], %r1;
  ret;
}
)";
  static constexpr const char* kAsks = R"(
.version 7.0
.target sm_50
.address_size 64
.extern .func (.param .b32 result) answer();
.visible .entry asks(.param .u64 out)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [out];
  {
    .param .b32 result;
    call (result), answer;
    ld.param.b32 %r1, [result];
  }
  st.global.u32 [%rd1], %r1;
  ret;
}
)";
  CUlinkState state = nullptr;
};

void expect_all(CUdeviceptr at, unsigned value) {
  const auto seen = download<unsigned>(at, kItems);
  for (unsigned i = 0; i < kItems; ++i) EXPECT(seen[i] == value);
}

struct Everything {
  Everything() {
    make_streams_and_events();
    make_memory();
    set_what_code_knows();
    make_graph();
  }
  void make_streams_and_events() {
    int least = 0;
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest));
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuEventCreate(&recorded, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&fresh, CU_EVENT_DEFAULT));
    OK(cuEventRecord(recorded, stream));
  }
  void make_memory() {
    for (CUdeviceptr* const memory : {&sums, &graph_sums, &out}) OK(cuMemAlloc(memory, kBytes));
    OK(cuMemAllocAsync(&pooled, kBytes, stream));
    for (const CUdeviceptr at : {sums, graph_sums, pooled}) OK(cuMemsetD32Async(at, 0, kItems, stream));
    OK(cuMemsetD32(mapped.address, 0, kItems));
  }
  void set_what_code_knows() {
    CUdeviceptr table = 0;
    size_t bytes = 0;
    OK(cuModuleGetGlobal(&counter, &bytes, kernels.module, "counter"));
    OK(cuModuleGetGlobal(&table, &bytes, kernels.module, "table"));
    unsigned constants[16];
    for (unsigned i = 0; i < 16; ++i) constants[i] = 100 * i;
    OK(cuMemcpyHtoD(table, constants, sizeof constants));
    OK(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 25));
    OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 2 << 20));
  }
  // A kernel, and the record of an event that is destroyed before the launches.
  void make_graph() {
    CUevent temporary = nullptr;
    CUgraph captured = nullptr;
    OK(cuEventCreate(&temporary, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(kernels.launch("add", kItems / 256, 256, stream, graph_sums, 3u, kItems));
    OK(cuEventRecordWithFlags(temporary, stream, CU_EVENT_RECORD_EXTERNAL));
    OK(cuStreamEndCapture(stream, &captured));
    OK(cuGraphInstantiateWithFlags(&graph, captured, 0));
    OK(cuGraphDestroy(captured));
    OK(cuEventDestroy(temporary));
  }

  void link() {
    pending->complete();
    pending = std::make_unique<Link>();
  }
  void work() const {
    OK(kernels.launch("add", kItems / 256, 256, nullptr, sums, 1u, kItems));
    OK(kernels.launch("add", kItems / 256, 256, blocking, sums, 1u, kItems));
    OK(kernels.launch("add", kItems / 256, 256, nullptr, mapped.address, 5u, kItems));
    OK(kernels.launch("add", kItems / 256, 256, stream, pooled, 7u, kItems));
    OK(cuGraphLaunch(graph, stream));
    OK(kernels.launch("use_symbols", kItems / 256, 256, nullptr, out, kItems));
    OK(cuCtxSynchronize());
  }
  void expect_results_of(unsigned rounds) const {
    expect_all(sums, 2 * rounds);
    expect_all(mapped.address, 5 * rounds);
    aside.look(mapped, [](CUdeviceptr at) { expect_all(at, 11); });
    expect_all(pooled, 7 * rounds);
    expect_all(graph_sums, 3 * rounds);
    const auto seen = download<unsigned>(out, kItems);
    for (unsigned i = 0; i < kItems; ++i) EXPECT(seen[i] == 100 * (i % 16) + i);
    EXPECT(download<unsigned>(counter, 1)[0] == 7 + rounds * kItems);
  }
  void expect_settings() const {
    float milliseconds = 0;
    int priority = 0, carveout = 0;
    size_t limit = 0;
    OK(cuEventQuery(recorded));
    OK(cuEventQuery(fresh));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, fresh, fresh));  // never recorded
    OK(cuStreamGetPriority(stream, &priority));
    EXPECT(priority == greatest);
    OK(cuFuncGetAttribute(&carveout, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, add));
    EXPECT(carveout == 25);
    OK(cuCtxGetLimit(&limit, CU_LIMIT_PRINTF_FIFO_SIZE));
    EXPECT(limit == 2 << 20);
  }

  const Device device;
  const Kernels kernels;
  const CUfunction add = kernels.function("add");
  const Mapped mapped{device.device};
  const Aside aside{mapped};
  std::unique_ptr<Link> pending = std::make_unique<Link>();
  CUstream stream = nullptr, blocking = nullptr;
  CUevent recorded = nullptr, fresh = nullptr;
  CUgraphExec graph = nullptr;
  CUdeviceptr sums = 0, graph_sums = 0, pooled = 0, out = 0, counter = 0;
  int greatest = 0;  // priority
};

}  // namespace

// all_kinds ROUNDS MILLISECONDS [FILE]: pauses for this time after each round, without any call. Ends earlier
// when the file exists.
SCENARIO(all_kinds) {
  const auto rounds = static_cast<unsigned>(std::stoul(arguments.at(0)));
  const std::chrono::milliseconds pause(std::stoul(arguments.at(1)));
  Everything everything;
  std::printf("working\n");
  std::fflush(stdout);
  const auto is_to_end = [&] { return arguments.size() > 2 && std::filesystem::exists(arguments[2]); };
  unsigned round = 1;
  for (; round <= rounds && !is_to_end(); ++round) {
    everything.work();
    everything.link();
    everything.expect_results_of(round);
    everything.expect_settings();
    std::this_thread::sleep_for(pause);
  }
  std::printf("all kinds are unchanged after %u rounds\n", round - 1);
}
