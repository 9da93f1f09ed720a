// Limits on streams, modules and queued commands.
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/e2e/apps/scenario.h"

using namespace app;

// [number]: prints how many streams work. cuStreamCreate does not wait for the server, so a later call
// returns the error.
SCENARIO(many_streams) {
  Device device;
  const int wanted = std::stoi(arguments.at(0));
  std::vector<CUstream> streams;
  CUresult refused = CUDA_SUCCESS;
  for (int i = 0; i < wanted && refused == CUDA_SUCCESS; ++i) {
    CUstream stream = nullptr;
    refused = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (refused == CUDA_SUCCESS) refused = cuCtxSynchronize();
    if (refused == CUDA_SUCCESS) streams.push_back(stream);
  }
  std::printf("%zu of %d streams work, then %s\n", streams.size(), wanted, name_of(refused));
  for (const CUstream stream : streams) OK(cuStreamSynchronize(stream));
  OK(cuStreamDestroy(streams.back()));
  CUstream again = nullptr;
  OK(cuStreamCreate(&again, CU_STREAM_NON_BLOCKING));
  OK(cuStreamSynchronize(again));
}

// A thread queues 160 MB of copies behind a host function, which waits until another thread has completed
// work in another stream.
SCENARIO(much_behind_a_host_function) {
  const Device device;
  const Kernels kernels;
  kernels.load({"add"});
  CUstream held = nullptr, other = nullptr, captured = nullptr;
  for (CUstream* const stream : {&held, &other, &captured})
    OK(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
  constexpr size_t kSmall = 8'000, kLarge = 10'000'000;
  const std::vector<uint8_t> data = pattern(150'000'000 + kLarge, 5);
  CUdeviceptr memory = 0, counter = 0;
  OK(cuMemAlloc(&memory, data.size()));
  OK(cuMemAlloc(&counter, 4));
  OK(cuMemsetD32(counter, 0, 1));
  std::atomic<bool> open{false};
  const auto wait_until_open = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
  for (const CUstream stream : {held, captured}) OK(cuLaunchHostFunc(stream, wait_until_open, &open));
  std::atomic<size_t> queued{0};
  std::thread queuing([&] {
    OK(cuCtxSetCurrent(device.context));
    for (size_t at = 0; at < data.size();) {
      const size_t size = at + kLarge < data.size() ? kSmall : data.size() - at;
      OK(cuMemcpyHtoDAsync(memory + at, data.data() + at, size, held));
      queued = at += size;
    }
  });
  while (queued < 400'000) std::this_thread::yield();
  for (unsigned round = 1; round <= 100; ++round) {
    OK(kernels.launch("add", 1, 1, other, counter, 1u, 1u));
    OK(cuStreamSynchronize(other));
  }
  EXPECT(download<unsigned>(counter, 1)[0] == 100);
  EXPECT(queued < data.size());
  // A captured launch is not sent, so it is not blocked.
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(kernels.launch("add", 1, 1, captured, counter, 1u, 1u));
  OK(cuStreamEndCapture(captured, &graph));
  open = true;
  open.notify_all();
  queuing.join();
  OK(cuStreamSynchronize(held));
  EXPECT(download<uint8_t>(memory, data.size()) == data);
}

SCENARIO(many_modules) {
  Device device;
  const int wanted = std::stoi(arguments.at(0));
  std::vector<CUmodule> modules;
  CUresult refused = CUDA_SUCCESS;
  for (int i = 0; i < wanted && refused == CUDA_SUCCESS; ++i) {
    const std::string image = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k" +
                              std::to_string(i) + "()\n{\n ret;\n}\n";
    CUmodule module = nullptr;
    refused = cuModuleLoadData(&module, image.c_str());
    if (refused == CUDA_SUCCESS) modules.push_back(module);
  }
  std::printf("%zu of %d modules, then %s\n", modules.size(), wanted, name_of(refused));
  OK(cuModuleUnload(modules.back()));
  OK(cuModuleLoadData(
      &modules.back(),
      ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry last()\n{\n ret;\n}\n"));
}

// Pinned memory shared with the server is a file, to which RLIMIT_FSIZE applies.
SCENARIO(pinned_memory_with_short_files) {
  Device device;
  const rlimit limit{1 << 20, 1 << 20};
  EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  constexpr size_t kBytes = 8 << 20;
  unsigned char* memory = nullptr;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&memory), kBytes));
  CUdeviceptr there = 0;
  OK(cuMemAlloc(&there, kBytes));
  std::memset(memory, 5, kBytes);
  OK(cuMemcpyHtoD(there, memory, kBytes));
  std::memset(memory, 0, kBytes);
  OK(cuMemcpyDtoHAsync(memory, there, kBytes, nullptr));
  OK(cuStreamSynchronize(nullptr));
  EXPECT(memory[0] == 5 && memory[kBytes - 1] == 5);
  OK(cuMemFreeHost(memory));
  OK(cuMemFree(there));
}
