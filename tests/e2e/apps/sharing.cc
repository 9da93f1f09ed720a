// Programs that share a GPU with other programs.
#include <unistd.h>

#include <chrono>
#include <deque>

#include "tests/e2e/apps/scenario.h"

using namespace app;

// [milliseconds, kernel rounds, file]: keeps the device busy with up to eight queued kernels; prints
// "working" and finally the number of completed kernels. With a file name, starts when that file exists.
SCENARIO(keep_busy) {
  Device device;
  Kernels kernels;
  CUdeviceptr values = 0;
  CUstream stream = nullptr;
  OK(cuMemAlloc(&values, 4096));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const auto rounds = static_cast<unsigned>(std::stoul(arguments.at(1)));
  OK(kernels.launch("burn", 1, 1, stream, values, rounds));
  OK(cuStreamSynchronize(stream));
  std::printf("working\n");
  std::fflush(stdout);
  while (arguments.size() > 2 && ::access(arguments[2].c_str(), F_OK) != 0) ::usleep(1000);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(std::stoul(arguments.at(0)));
  std::deque<CUevent> queued;
  unsigned done = 0;
  for (bool more = true; more || !queued.empty();) {
    if (more && queued.size() < 8) {
      CUevent event = nullptr;
      OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
      OK(kernels.launch("burn", 1, 1, stream, values, rounds));
      OK(cuEventRecord(event, stream));
      queued.push_back(event);
      continue;
    }
    OK(cuEventSynchronize(queued.front()));
    OK(cuEventDestroy(queued.front()));
    queued.pop_front();
    more = more && std::chrono::steady_clock::now() < end;
    done += more;
  }
  std::printf("done %u\n", done);
}

// [milliseconds]: launches more blocks than the device can run at once; prints the number of multiprocessors
// and the grid size that the driver suggests.
SCENARIO(fill_the_device) {
  Device device;
  Kernels kernels;
  int multiprocessors = 0, grid = 0, block = 0;
  OK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, kernels.function("burn"), nullptr, 0, 0));
  CUdeviceptr values = 0;
  OK(cuMemAlloc(&values, 4096));
  std::printf("multiprocessors %d grid %d\nworking\n", multiprocessors, grid);
  std::fflush(stdout);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(std::stoul(arguments.at(0)));
  unsigned done = 0;
  for (; std::chrono::steady_clock::now() < end; ++done) {
    OK(kernels.launch("burn", 64, 1, nullptr, values, 50'000u));
    OK(cuCtxSynchronize());
  }
  std::printf("done %u\n", done);
}

// A kernel that waits for one of another stream, which is launched later.
SCENARIO(kernels_wait_for_each_other) {
  Device device;
  Kernels kernels;
  kernels.load({"burn", "burn_forever"});
  CUdeviceptr flag = 0, values = 0;
  CUstream a = nullptr, b = nullptr;
  OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&flag, 4));
  OK(cuMemAlloc(&values, 4096));
  for (unsigned round = 0; round < 2; ++round) {
    OK(cuMemsetD32(flag, 0, 1));
    OK(kernels.launch("burn_forever", 1, 1, a, flag));
    OK(kernels.launch("burn", 1, 1, b, values, 1000u));
    OK(cuMemsetD32Async(flag, 1, 1, b));
    OK(cuStreamSynchronize(a));
  }
  std::printf("both ran\n");
}

// A stream waits for a value that a kernel of another stream writes later, with copies in between.
SCENARIO(kernels_behind_a_wait_for_a_value) {
  Device device;
  Kernels kernels;
  kernels.load({"add", "burn", "fill"});
  CUdeviceptr flag = 0, values = 0, more = 0;
  CUstream a = nullptr, b = nullptr;
  OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&flag, 4));
  OK(cuMemAlloc(&values, 4096));
  OK(cuMemAlloc(&more, 2 << 20));
  OK(cuMemsetD32(flag, 0, 1));
  std::vector<unsigned> host(512 << 10, 3);
  OK(cuStreamWaitValue32(a, flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
  for (unsigned i = 0; i < 100; ++i) OK(kernels.launch("burn", 1, 1, a, values, 100'000u));
  OK(kernels.launch("fill", 4, 256, a, values, 5u, 1024u));
  OK(cuMemcpyHtoDAsync(more, host.data(), 2 << 20, b));
  OK(kernels.launch("add", 2048, 256, b, more, 4u, 512u << 10));
  OK(kernels.launch("fill", 1, 1, b, flag, 1u, 1u));
  OK(cuStreamSynchronize(a));
  OK(cuStreamSynchronize(b));
  EXPECT(download<uint32_t>(values, 1024)[1023] == 1028);
  EXPECT(download<uint32_t>(more, 512 << 10).back() == 7);
  std::printf("all ran\n");
}

// Launches a kernel that never ends.
SCENARIO(endless) {
  Device device;
  Kernels kernels;
  CUdeviceptr flag = 0;
  OK(cuMemAlloc(&flag, 4));
  OK(cuMemsetD32(flag, 0, 1));
  OK(kernels.launch("burn_forever", 1, 1, nullptr, flag));
  OK(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
  std::printf("working\n");
  std::fflush(stdout);
  while (true) ::pause();
}

// Behind a kernel that never ends, the first launch of another kernel waits in the driver, which holds the
// context's lock.
SCENARIO(load_behind_an_endless_kernel) {
  Device device;
  Kernels kernels;
  CUdeviceptr flag = 0;
  OK(cuMemAlloc(&flag, 4));
  OK(cuMemsetD32(flag, 0, 1));
  OK(kernels.launch("burn_forever", 1, 1, nullptr, flag));
  EXPECT(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
  ::usleep(
      100'000);  // lets the worker's executor fall asleep, so that another worker thread watches the kernel
  std::printf("working\n");
  std::fflush(stdout);
  OK(kernels.launch("nothing", 1, 1, nullptr));
  while (true) ::pause();
}

// Uses the device once and then stays idle.
SCENARIO(idle_session) {
  Device device;
  Kernels kernels;
  OK(kernels.launch("nothing", 1, 1, nullptr));
  OK(cuCtxSynchronize());
  std::printf("working\n");
  std::fflush(stdout);
  while (true) ::pause();
}
