// Process behaviour: fork, exec and spawn, many threads, exit handlers, signals during calls.
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

// Runs a kernel and a copy in each direction, and checks the result.
void compute(const Kernels& kernels, CUstream stream, uint32_t seed) {
  constexpr uint32_t kCount = 5000;
  std::vector<uint32_t> values(kCount);
  for (uint32_t i = 0; i < kCount; ++i) values[i] = i * seed;
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, kCount * sizeof(uint32_t)));
  OK(cuMemcpyHtoDAsync(memory, values.data(), kCount * sizeof(uint32_t), stream));
  OK(kernels.launch("add", 20, 256, stream, memory, 7u, kCount));
  OK(cuMemcpyDtoHAsync(values.data(), memory, kCount * sizeof(uint32_t), stream));
  OK(cuStreamSynchronize(stream));
  for (uint32_t i = 0; i < kCount; ++i) EXPECT(values[i] == i * seed + 7);
  OK(cuMemFree(memory));
}

// Three threads that call the driver continuously during the object's lifetime.
class AtWork {
 public:
  AtWork(const Device& device, const Kernels& kernels) {
    for (uint32_t i = 0; i < 3; ++i) {
      threads_.emplace_back([this, &device, &kernels, i] {
        OK(cuCtxSetCurrent(device.context));
        while (!ended_) compute(kernels, CU_STREAM_PER_THREAD, i + 1);
      });
    }
  }
  ~AtWork() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> ended_ = false;
  std::vector<std::thread> threads_;
};

int status_of(pid_t child) {
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run_self(const std::vector<const char*>& words) {
  std::vector<char*> arguments{const_cast<char*>("driver_app")};
  for (const char* word : words) arguments.push_back(const_cast<char*>(word));
  arguments.push_back(nullptr);
  std::fflush(stdout);
  pid_t child = 0;
  EXPECT(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ) == 0);
  return status_of(child);
}

}  // namespace

SCENARIO(compute_once) {
  Device device;
  compute(Kernels(), nullptr, 3);
  std::printf("computed\n");
}

// Replaces the program by another one, which gets its own session.
SCENARIO(exec_after_use) {
  {
    Device device;
    compute(Kernels(), nullptr, 5);
  }
  std::printf("going on as another program\n");
  std::fflush(stdout);
  execl("/proc/self/exe", "driver_app", "compute_once", nullptr);
  fail(__FILE__, __LINE__, "exec failed");
}

// While other threads call the driver: children of posix_spawn, and a forked child that calls exec.
SCENARIO(programs_started_by_one_at_work) {
  Device device;
  Kernels kernels;
  const AtWork threads(device, kernels);
  for (int i = 0; i < 3; ++i) EXPECT(run_self({"compute_once"}) == 0);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) execl("/proc/self/exe", "driver_app", "compute_once", nullptr), _exit(127);
  EXPECT(status_of(child) == 0);
}

// In a child forked while other threads call the driver, every call returns CUDA_ERROR_NOT_INITIALIZED, and
// the child can exit.
SCENARIO(forked_beside_threads_at_work) {
  Device device;
  Kernels kernels;
  const AtWork threads(device, kernels);
  std::fflush(stdout);
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      CUdeviceptr memory = 0;
      int count = 0;
      const bool told = cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                        cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                        cuMemAlloc(&memory, 64) == CUDA_ERROR_NOT_INITIALIZED &&
                        cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED;
      _exit(told ? 0 : 1);
    }
    EXPECT(status_of(child) == 0);
  }
}

SCENARIO(many_threads) {
  Device device;
  Kernels kernels;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 64; ++i) {
    threads.emplace_back([&, i] {
      OK(cuCtxSetCurrent(device.context));
      CUstream stream = nullptr;
      OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      for (uint32_t round = 0; round < 5; ++round)
        compute(kernels, i % 2 ? stream : CU_STREAM_PER_THREAD, i + round);
      OK(cuStreamDestroy(stream));
      if (i % 8 == 0) pthread_exit(nullptr);  // C programs may end threads this way
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Signals every millisecond without SA_RESTART interrupt all waits.
SCENARIO(interrupted_calls) {
  static std::atomic<int> interruptions{0};
  struct sigaction action {};
  action.sa_handler = [](int) { ++interruptions; };
  EXPECT(sigaction(SIGALRM, &action, nullptr) == 0);
  const itimerval every{{0, 1000}, {0, 1000}};
  EXPECT(setitimer(ITIMER_REAL, &every, nullptr) == 0);  // before connecting, too
  Device device;
  Kernels kernels;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      OK(cuCtxSetCurrent(device.context));
      for (uint32_t round = 0; round < 20; ++round) compute(kernels, CU_STREAM_PER_THREAD, i + round);
    });
  }
  constexpr size_t kLarge = 24 << 20;  // large enough for bulk connections
  const std::vector<uint8_t> out = pattern(kLarge, 1);
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, kLarge));
  for (int round = 0; round < 4; ++round) {
    OK(cuMemcpyHtoD(memory, out.data(), kLarge));
    EXPECT(download<uint8_t>(memory, kLarge) == out);
    OK(kernels.launch("burn", 4, 64, nullptr, memory, 200'000u));
    OK(cuCtxSynchronize());
  }
  for (std::thread& thread : threads) thread.join();
  OK(cuMemFree(memory));
  const itimerval never{};
  EXPECT(setitimer(ITIMER_REAL, &never, nullptr) == 0);
  EXPECT(interruptions > 20);
}

// Memory freed by static objects and exit handlers, some of which were registered before the driver was
// initialized.
namespace {
struct Global {
  ~Global() {
    if (memory == 0) return;
    std::printf("a static object frees: %s\n", name_of(cuMemFree(memory)));
    std::fflush(stdout);
  }
  CUdeviceptr memory = 0;
} global;
CUdeviceptr of_early_handler = 0;
}  // namespace

SCENARIO(freed_at_exit) {
  std::atexit([] {
    std::printf("the first handler frees: %s\n", name_of(cuMemFree(of_early_handler)));
    std::fflush(stdout);
  });
  Device device;
  compute(Kernels(), nullptr, 2);
  OK(cuMemAlloc(&global.memory, 4096));
  OK(cuMemAlloc(&of_early_handler, 4096));
  std::atexit([] {
    Device again;
    compute(Kernels(), nullptr, 4);
    std::printf("the last handler computed\n");
    std::fflush(stdout);
  });
}

// exit() from one thread while others call the driver.
SCENARIO(exit_beside_threads_at_work) {
  Device device;
  static CUcontext context = device.context;
  static std::atomic<int> rounds{0};
  for (int i = 0; i < 3; ++i) {
    std::thread([] {
      OK(cuCtxSetCurrent(context));
      // While the process exits, any result is allowed, but calls must return.
      for (std::vector<uint8_t> bytes(4096);;) {
        CUdeviceptr memory = 0;
        const bool good = cuMemAlloc(&memory, 4096) == CUDA_SUCCESS &&
                          cuMemsetD8Async(memory, 1, 4096, CU_STREAM_PER_THREAD) == CUDA_SUCCESS &&
                          cuMemcpyDtoH(bytes.data(), memory, 4096) == CUDA_SUCCESS &&
                          cuMemFree(memory) == CUDA_SUCCESS;
        rounds += good;
      }
    }).detach();
  }
  while (rounds < 100) std::this_thread::yield();
  std::printf("leaving\n");
  std::exit(0);
}
