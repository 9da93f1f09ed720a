// Contexts, devices and processes: reset, fork, exit, dlclose.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/e2e/apps/scenario.h"

using namespace app;

// A forked child lacks the parent's threads, so LeakSanitizer would report memory that only they reference.
static bool in_forked_child = false;
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return in_forked_child;
}

namespace {

// Checks that the current context works: one allocation, one kernel, one result.
void use_device() {
  Kernels kernels;
  CUdeviceptr values = 0;
  OK(cuMemAlloc(&values, 4096));
  OK(kernels.launch("fill", 4, 256, nullptr, values, 11u, 1024u));
  EXPECT(download<uint32_t>(values, 1024)[1023] == 11 + 1023);
  OK(cuMemFree(values));
  OK(cuModuleUnload(kernels.module));
}

// Runs `body` in a forked child and returns its exit status, or 128 plus the signal.
template <class Body>
int in_child(Body&& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    body();
    std::fflush(stdout);
    std::_Exit(0);
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

SCENARIO(green_contexts) {
  Device device;
  int multiprocessors = 0;
  unsigned groups = 1;
  CUdevResource all{}, part{};
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  // All multiprocessors that the device reports, also in a partition.
  OK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device.device));
  OK(cuDeviceGetDevResource(device.device, &all, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT(all.sm.smCount == static_cast<unsigned>(multiprocessors));
  OK(cuDevSmResourceSplitByCount(&part, &groups, &all, nullptr, 0, 1));
  EXPECT(groups == 1 && part.sm.smCount >= 1 && part.sm.smCount <= all.sm.smCount);
  OK(cuDevResourceGenerateDesc(&description, &part, 1));
  OK(cuGreenCtxCreate(&green, description, device.device, CU_GREEN_CTX_DEFAULT_STREAM));
  OK(cuCtxFromGreenCtx(&context, green));
  OK(cuCtxSetCurrent(context));
  use_device();
  // Memory belongs to the device, whichever of its contexts is current.
  CUdeviceptr values = 0;
  Kernels kernels;
  OK(cuMemAlloc(&values, 4096));
  OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  OK(cuCtxSetCurrent(device.context));
  OK(kernels.launch("fill", 4, 256, stream, values, 3u, 1024u));
  OK(cuCtxSynchronize());  // synchronizing the primary context includes its green contexts
  EXPECT(download<uint32_t>(values, 1024)[1023] == 3 + 1023);
  OK(cuStreamDestroy(stream));
  OK(cuGreenCtxDestroy(green));
  EXPECT(download<uint32_t>(values, 1024)[1023] == 3 + 1023);
  OK(kernels.launch("fill", 4, 256, nullptr, values, 4u, 1024u));
  EXPECT(download<uint32_t>(values, 1024)[1023] == 4 + 1023);
  // A reset of the primary context also destroys its green contexts.
  OK(cuGreenCtxCreate(&green, description, device.device, CU_GREEN_CTX_DEFAULT_STREAM));
  OK(cuCtxFromGreenCtx(&context, green));
  OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  OK(cuDevicePrimaryCtxReset(device.device));
  OK(cuDevicePrimaryCtxRetain(&context, device.device));
  OK(cuCtxSetCurrent(context));
  use_device();
}

SCENARIO(reset_and_use_again) {
  Device device;
  CUdeviceptr values = 0;
  OK(cuMemAlloc(&values, 1 << 20));
  OK(cuDevicePrimaryCtxReset(device.device));
  unsigned flags = 0;
  int active = 0;
  OK(cuDevicePrimaryCtxGetState(device.device, &flags, &active));
  std::printf("after a reset: active %d flags %u, alloc %s\n", active, flags,
              name_of(cuMemAlloc(&values, 64)));
  CUcontext same = nullptr;
  OK(cuDevicePrimaryCtxRetain(&same, device.device));
  EXPECT(same == device.context);
  use_device();  // the context is still current
  OK(cuDevicePrimaryCtxRelease(device.device));
  const CUresult second = cuDevicePrimaryCtxRelease(device.device);
  OK(cuDevicePrimaryCtxGetState(device.device, &flags, &active));
  std::printf("second release %s, active %d, third %s\n", name_of(second), active,
              name_of(cuDevicePrimaryCtxRelease(device.device)));
  CUcontext again = nullptr;
  OK(cuDevicePrimaryCtxRetain(&again, device.device));
  EXPECT(again == device.context);
  OK(cuCtxSetCurrent(again));
  use_device();
}

SCENARIO(two_contexts) {
  OK(cuInit(0));
  CUdevice device = 0;
  OK(cuDeviceGet(&device, 0));
  CUcontext a = create_context(device), current = nullptr;
  OK(cuCtxPopCurrent(&current));
  CUcontext b = create_context(device);
  OK(cuCtxGetCurrent(&current));
  EXPECT(current == b);
  CUdeviceptr of_b = 0, of_a = 0;
  OK(cuMemAlloc(&of_b, 1 << 20));
  use_device();
  OK(cuCtxPushCurrent(a));
  OK(cuMemAlloc(&of_a, 1 << 20));
  use_device();
  CUstream stream_of_a = nullptr;
  OK(cuStreamCreate(&stream_of_a, CU_STREAM_NON_BLOCKING));
  OK(cuMemsetD32Async(of_a, 1, 1024, stream_of_a));
  OK(cuStreamSynchronize(stream_of_a));
  OK(cuCtxPopCurrent(&current));
  EXPECT(current == a);
  OK(cuCtxDestroy(a));
  use_device();
  OK(cuMemFree(of_b));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(of_a));
  OK(cuCtxDestroy(b));
  OK(cuCtxGetCurrent(&current));
  EXPECT(current == nullptr);
  GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&of_a, 1));
}

// Requires SOFTGPU_DEVICES=2.
SCENARIO(two_devices) {
  OK(cuInit(0));
  int count = 0;
  OK(cuDeviceGetCount(&count));
  EXPECT(count == 2);
  Device second(1), first(0);
  constexpr size_t kBytes = 1 << 20;
  const auto source = pattern(kBytes, 5);
  CUdeviceptr on_first = 0, on_second = 0;
  OK(cuMemAlloc(&on_first, kBytes));
  OK(cuMemcpyHtoD(on_first, source.data(), kBytes));
  OK(cuCtxSetCurrent(second.context));
  CUdevice current = -1;
  OK(cuCtxGetDevice(&current));
  EXPECT(current == 1);
  OK(cuMemAlloc(&on_second, kBytes));
  OK(cuMemcpyPeer(on_second, second.context, on_first, first.context, kBytes));
  EXPECT(download<uint8_t>(on_second, kBytes) == source);
  int possible = 0;
  OK(cuDeviceCanAccessPeer(&possible, 1, 0));
  std::printf("peer access %d\n", possible);
  if (possible) {
    OK(cuCtxEnablePeerAccess(first.context, 0));
    GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(first.context, 0));
    Kernels kernels;
    OK(kernels.launch("add", 4, 256, nullptr, on_first, 1u, 1024u));
    OK(cuCtxSynchronize());
    uint32_t word = 0, was = 0;
    OK(cuMemcpyDtoH(&word, on_first, 4));
    OK(cuMemcpyDtoH(&was, on_second, 4));
    EXPECT(word == was + 1);
    OK(cuCtxDisablePeerAccess(first.context));
  }
  use_device();
  OK(cuMemFree(on_second));
  OK(cuCtxSetCurrent(first.context));
  OK(cuMemFree(on_first));
  use_device();
}

// Requires SOFTGPU_DEVICES=2 and CUDA_VISIBLE_DEVICES=1.
SCENARIO(visible_devices) {
  OK(cuInit(0));
  int count = 0;
  OK(cuDeviceGetCount(&count));
  char bus[32] = "", name[64] = "";
  CUdevice device = -1;
  OK(cuDeviceGet(&device, 0));
  OK(cuDeviceGetPCIBusId(bus, sizeof bus, device));
  OK(cuDeviceGetName(name, sizeof name, device));
  std::printf("%d device(s), the first is %s\n", count, name);
  CUdevice by_bus = -1;
  OK(cuDeviceGetByPCIBusId(&by_bus, bus));
  EXPECT(by_bus == device);
  GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, count));
  Device used(0);
  use_device();
}

SCENARIO(no_visible_devices) {
  const CUresult result = cuInit(0);
  int count = -1;
  std::printf("cuInit %s", name_of(result));
  std::printf(", count %s\n", name_of(cuDeviceGetCount(&count)));
}

SCENARIO(fork_before_use) {
  for (int i = 0; i < 2; ++i) {
    EXPECT(in_child([] {
             Device device;
             use_device();
           }) == 0);
  }
  Device device;
  use_device();
}

SCENARIO(fork_after_use) {
  Device device;
  use_device();
  const int status = in_child([&] {
    CUdeviceptr address = 0;
    std::printf("child: alloc %s", name_of(cuMemAlloc(&address, 64)));
    std::printf(", init %s", name_of(cuInit(0)));
    std::printf(", synchronise %s\n", name_of(cuCtxSynchronize()));
  });
  EXPECT(status == 0);
  // A child that calls exit() instead of _exit() runs exit handlers, which must not affect the parent's
  // session.
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    in_forked_child = true;
    std::exit(0);
  }
  int ended = 0;
  EXPECT(waitpid(child, &ended, 0) == child && WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
  use_device();
}

SCENARIO(exit_without_cleanup) {
  Device device;
  Kernels kernels;
  CUdeviceptr values = 0;
  CUstream stream = nullptr;
  OK(cuMemAlloc(&values, 8 << 20));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(kernels.launch("fill", 4, 256, stream, values, 11u, 1024u));
  std::atexit([] {
    // cudart also calls the driver from exit handlers.
    CUcontext current = nullptr;
    OK(cuCtxGetCurrent(&current));
    OK(cuCtxSynchronize());
    std::printf("exit handler ran\n");
  });
  std::thread([] {
    for (;;) pause();
  }).detach();
}

SCENARIO(threads_come_and_go) {
  Device device;
  Kernels kernels;
  CUdeviceptr values = 0;
  OK(cuMemAlloc(&values, 4));
  OK(cuMemsetD32(values, 0, 1));
  for (int i = 0; i < 100; ++i) {
    std::thread([&] {
      CUcontext current = &*reinterpret_cast<CUcontext>(&i);
      OK(cuCtxGetCurrent(&current));
      EXPECT(current == nullptr);
      OK(cuCtxSetCurrent(device.context));
      OK(kernels.launch("add", 1, 1, CU_STREAM_PER_THREAD, values, 1u, 1u));
      OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    }).join();
  }
  EXPECT(download<uint32_t>(values, 1)[0] == 100);
}

// Functions that were added in CUDA 13.1 and 13.3 fail with CUDA_ERROR_NOT_SUPPORTED, and the context still
// works.
SCENARIO(newer_functions) {
  Device device;
  for (const char* const name : {"cuGraphGetId", "cuGraphGetId", "cuLogicalEndpointDestroy"}) {
    void* const function = dlsym(RTLD_DEFAULT, name);
    EXPECT(function != nullptr);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, reinterpret_cast<CUresult (*)(...)>(function)(nullptr, nullptr));
  }
  use_device();
}

SCENARIO(library_closed_and_opened) {
  for (int round = 0; round < 2; ++round) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library != nullptr);
    const auto init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(library, "cuInit"));
    EXPECT(init != nullptr);
    OK(init(0));
    EXPECT(dlclose(library) == 0);
  }
  Device device;
  use_device();
}
