// A program that makes, changes and destroys objects of every kind all the time, beside memory that hardly
// changes, and finds all of them as they must be.
#include <signal.h>

#include <filesystem>
#include <memory>

#include "tests/e2e/apps/scenario.h"
#include "tests/support/own_connections.h"

using namespace app;

namespace {

constexpr size_t kUnit = 64 * 1024;
constexpr unsigned kStep = 1999;  // weights between two that change

unsigned first_value(size_t i) {
  return static_cast<unsigned>(i) * 2654435761u;
}

// Much memory, of which every round changes little.
struct Weights {
  Weights(size_t bytes, const Kernels& kernels) : kernels(kernels), expected(bytes / sizeof(unsigned)) {
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = first_value(i);
    OK(cuMemAlloc(&address, bytes));
    OK(cuMemcpyHtoD(address, expected.data(), bytes));
  }
  void change(unsigned round) {
    const size_t at = size_t{round} * kStep % expected.size();
    OK(kernels.launch("add", 1, 1, nullptr, address + at * sizeof(unsigned), round, 1u));
    expected[at] += round;
  }
  void check() const { EXPECT(download<unsigned>(address, expected.size()) == expected); }
  const Kernels& kernels;
  std::vector<unsigned> expected;
  CUdeviceptr address = 0;
};

// Memory of changing size at changing places.
struct Slot {
  void replace(unsigned round, const Kernels& kernels) {
    if (address != 0) OK(cuMemFree(address));
    count = static_cast<unsigned>((1 + round % 37) * kUnit / sizeof(unsigned));
    value = round;
    OK(cuMemAlloc(&address, count * sizeof(unsigned)));
    OK(kernels.launch("fill", count / 256, 256, nullptr, address, value, count));
  }
  void check() const {
    if (address == 0) return;
    for (const unsigned at : {0u, count / 2, count - 1})
      EXPECT(download<unsigned>(address + at * sizeof(unsigned), 1)[0] == value + at);
  }
  CUdeviceptr address = 0;
  unsigned count = 0, value = 0;
};

// Memory of cuMemCreate that is mapped anew.
struct ChangingMapping {
  explicit ChangingMapping(CUdevice device) {
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    OK(cuMemGetAllocationGranularity(&size, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemAddressReserve(&address, size, 0, 0, 0));
  }
  void replace(unsigned round) {
    if (memory != 0) {
      OK(cuMemUnmap(address, size));
      OK(cuMemRelease(memory));
    }
    OK(cuMemCreate(&memory, size, &properties, 0));
    OK(cuMemMap(address, size, 0, memory, 0));
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemSetAccess(address, size, &access, 1));
    OK(cuMemsetD32(address, round, size / sizeof(unsigned)));
    value = round;
  }
  void check() const {
    if (memory != 0) EXPECT(download<unsigned>(address + size - sizeof(unsigned), 1)[0] == value);
  }
  CUmemAllocationProp properties{};
  CUmemGenericAllocationHandle memory = 0;
  CUdeviceptr address = 0;
  size_t size = 0;
  unsigned value = 0;
};

// A module whose variable has another value than in other modules.
struct Module {
  explicit Module(unsigned round) : value(round) {
    size_t bytes = 0;
    OK(cuModuleGetGlobal(&counter, &bytes, kernels.module, "counter"));
    OK(cuMemcpyHtoD(counter, &value, sizeof value));
  }
  ~Module() {
    EXPECT(download<unsigned>(counter, 1)[0] == value);
    OK(cuModuleUnload(kernels.module));
  }
  const Kernels kernels;
  const unsigned value;
  CUdeviceptr counter = 0;
};

// A stream with an event and a graph that adds to memory.
struct Work {
  Work(CUdeviceptr memory, const Kernels& kernels) {
    CUgraph captured = nullptr;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(kernels.launch("add", 1, 256, stream, memory, 1u, 256u));
    OK(cuStreamEndCapture(stream, &captured));
    OK(cuGraphInstantiateWithFlags(&graph, captured, 0));
    OK(cuGraphDestroy(captured));
  }
  ~Work() {
    OK(cuEventSynchronize(event));
    OK(cuGraphExecDestroy(graph));
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(stream));
  }
  void run() const {
    OK(cuGraphLaunch(graph, stream));
    OK(cuEventRecord(event, stream));
  }
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUgraphExec graph = nullptr;
};

}  // namespace

// changing FILE MIB: goes on until the file exists, with so much memory that hardly changes. SIGUSR1: cuts
// its connections.
SCENARIO(changing) {
  static volatile sig_atomic_t is_to_cut = 0;
  (void)::signal(SIGUSR1, [](int) { is_to_cut = 1; });
  const Device device;
  const Kernels kernels;
  kernels.load({"add", "fill"});
  Weights weights(std::stoul(arguments.at(1)) << 20, kernels);
  std::vector<Slot> slots(8);
  ChangingMapping mapped(device.device);
  std::unique_ptr<Module> module;
  std::unique_ptr<Work> work;
  CUdeviceptr sums = 0;
  unsigned added = 0;
  OK(cuMemAlloc(&sums, 256 * sizeof(unsigned)));
  OK(cuMemsetD32(sums, 0, 256));
  std::printf("working\n");
  std::fflush(stdout);
  for (unsigned round = 1; !std::filesystem::exists(arguments.at(0)); ++round) {
    if (is_to_cut != 0) {
      is_to_cut = 0;
      const auto connections = gpupool::testing::own_connections();
      gpupool::testing::cut(connections);
      std::printf("cut %zu\n", connections.size());
      std::fflush(stdout);
    }
    weights.change(round);
    slots[round % slots.size()].replace(round, kernels);
    if (round % 3 == 0) mapped.replace(round);
    if (round % 4 == 0) module = std::make_unique<Module>(round);
    if (round % 5 == 0) {
      work.reset();
      work = std::make_unique<Work>(sums, kernels);
    }
    if (work) {
      work->run();
      ++added;
    }
    mapped.check();
    for (const Slot& slot : slots) slot.check();
  }
  work.reset();
  OK(cuCtxSynchronize());
  weights.check();
  EXPECT(download<unsigned>(sums, 256) == std::vector<unsigned>(256, added));
  std::printf("nothing is lost\n");
}
