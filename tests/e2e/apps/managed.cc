// Managed memory, and pinned memory used by kernels.
#include <fcntl.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <thread>

#include "tests/e2e/apps/scenario.h"

namespace app {
namespace {

unsigned* managed(size_t count, unsigned flags = CU_MEM_ATTACH_GLOBAL) {
  CUdeviceptr address = 0;
  OK(cuMemAllocManaged(&address, count * sizeof(unsigned), flags));
  return reinterpret_cast<unsigned*>(address);
}
CUdeviceptr on_device(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

void add(const Kernels& kernels, unsigned* values, unsigned value, size_t count, CUstream stream = nullptr) {
  OK(kernels.launch("add", static_cast<unsigned>((count + 255) / 256), 256, stream, values, value,
                    static_cast<unsigned>(count)));
}

bool counts_from(const unsigned* values, size_t count, unsigned first) {
  for (size_t i = 0; i < count; ++i) {
    if (values[i] != first + i) return false;
  }
  return true;
}

}  // namespace

SCENARIO(managed_memory) {
  const Device device;
  const Kernels kernels;
  constexpr size_t kCount = 300'000;
  unsigned* const values = managed(kCount);
  std::iota(values, values + kCount, 0u);
  for (unsigned round = 1; round <= 3; ++round) {
    add(kernels, values, 5, kCount);
    add(kernels, values, 5, kCount);
    OK(cuCtxSynchronize());
    EXPECT(counts_from(values, kCount, 10 * round + round - 1));
    for (size_t i = 0; i < kCount; ++i) ++values[i];
  }
  // Single pages, read and written.
  add(kernels, values, 1, kCount);
  OK(cuStreamSynchronize(nullptr));
  EXPECT(values[kCount - 1] == kCount - 1 + 34);
  values[100'000] = 7;
  add(kernels, values, 1, kCount);
  OK(cuCtxSynchronize());
  EXPECT(values[100'000] == 8 && values[100'001] == 100'001 + 35 && values[0] == 35);
  OK(cuMemFree(on_device(values)));
  // Kernels and the host see each other's writes, also in memory that only one of them has used so far.
  unsigned* const fresh = managed(kCount);
  fresh[3] = 4;
  EXPECT(fresh[3] == 4);
  OK(kernels.launch("fill", 4, 256, nullptr, fresh, 9u, 1000u));
  OK(cuCtxSynchronize());
  EXPECT(fresh[3] == 12 && fresh[999] == 1008);
  OK(cuMemFree(on_device(fresh)));
}

SCENARIO(managed_copies) {
  const Device device;
  const Kernels kernels;
  constexpr size_t kCount = 100'000, kBytes = kCount * sizeof(unsigned);
  unsigned* const one = managed(kCount);
  unsigned* const two = managed(kCount);
  std::vector<unsigned> plain(kCount);
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, kBytes));
  std::iota(one, one + kCount, 1u);
  OK(cuMemcpy(on_device(two), on_device(one), kBytes));
  EXPECT(counts_from(two, kCount, 1));
  two[0] = 77;
  OK(cuMemcpyDtoH(plain.data(), on_device(two), kBytes));
  EXPECT(plain[0] == 77 && plain[1] == 2);
  OK(cuMemcpyHtoD(memory, two, kBytes));  // as the host side of a copy
  OK(cuMemsetD32(on_device(two), 5, 1000));
  EXPECT(two[0] == 5 && two[999] == 5 && two[1000] == 1001);
  OK(cuMemcpyDtoH(one, memory, kBytes));
  EXPECT(one[0] == 77 && one[kCount - 1] == kCount);
  std::iota(plain.begin(), plain.end(), 100u);
  OK(cuMemcpyHtoD(on_device(one), plain.data(), kBytes / 2));
  EXPECT(one[0] == 100 && one[kCount / 2] == kCount / 2 + 1);
  OK(cuMemcpyDtoDAsync(on_device(two), on_device(one), kBytes, nullptr));
  add(kernels, two, 1, kCount);
  OK(cuMemcpyDtoHAsync(plain.data(), on_device(two), kBytes, nullptr));
  OK(cuStreamSynchronize(nullptr));
  EXPECT(plain[0] == 101 && plain[kCount - 1] == kCount + 1);
  CUDA_MEMCPY2D box{};
  box.srcMemoryType = CU_MEMORYTYPE_HOST, box.srcHost = one, box.srcPitch = 400;
  box.dstMemoryType = CU_MEMORYTYPE_UNIFIED, box.dstDevice = on_device(two), box.dstPitch = 800;
  box.WidthInBytes = 40, box.Height = 100;
  OK(cuMemcpy2D(&box));
  EXPECT(two[0] == 100 && two[200] == 200 && two[10] == 111);
  std::memcpy(plain.data(), two, kBytes);
  EXPECT(plain[0] == 100);
  for (const CUdeviceptr gone : {on_device(one), on_device(two), memory}) OK(cuMemFree(gone));
}

SCENARIO(managed_large_arrays) {
  const Device device;
  const Kernels kernels;
  constexpr size_t kCount = 16u << 20;
  unsigned* const values = managed(kCount);
  for (size_t i = 0; i < kCount; i += 1024) values[i] = static_cast<unsigned>(i);
  add(kernels, values, 3, kCount);
  OK(cuCtxSynchronize());
  size_t wrong = 0;
  for (size_t i = 0; i < kCount; ++i) wrong += values[i] != (i % 1024 == 0 ? i + 3 : 3);
  EXPECT(wrong == 0);
  add(kernels, values, 1, kCount);
  OK(cuCtxSynchronize());
  for (size_t i = kCount; i > 40'000; i -= 40'000)
    wrong += values[i - 1] != ((i - 1) % 1024 == 0 ? i + 3 : 4);
  EXPECT(wrong == 0);
  OK(cuMemFree(on_device(values)));
}

SCENARIO(managed_small_objects) {
  const Device device;
  const Kernels kernels;
  struct Node {
    Node* next;
    unsigned value;
  };
  Node* first = nullptr;
  for (unsigned i = 0; i < 2000; ++i) {
    auto* const node = reinterpret_cast<Node*>(managed(sizeof(Node) / sizeof(unsigned)));
    *node = {first, i};
    first = node;
  }
  for (Node* node = first; node; node = node->next->next) add(kernels, &node->value, 1, 1);
  OK(cuCtxSynchronize());
  size_t sum = 0;
  for (Node* node = first; node;) {
    sum += node->value;
    Node* const next = node->next;
    OK(cuMemFree(on_device(node)));
    node = next;
  }
  EXPECT(sum == 2000 * 1999 / 2 + 1000);
}

SCENARIO(managed_memory_in_threads) {
  const Device device;
  const Kernels kernels;
  constexpr size_t kCount = 1 << 20, kThreads = 8;
  unsigned* const values = managed(kCount);
  std::iota(values, values + kCount, 0u);
  for (unsigned round = 1; round <= 5; ++round) {
    add(kernels, values, 1, kCount);
    OK(cuCtxSynchronize());
    std::vector<std::thread> threads;
    std::vector<int> right(kThreads);
    for (size_t t = 0; t < kThreads; ++t) {
      // All threads access the same blocks.
      threads.emplace_back([&, t] {
        right[t] = 1;
        for (size_t i = t; i < kCount; i += kThreads) {
          right[t] = right[t] && values[i] == i + 2 * round - 1;
          ++values[i];
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT(std::count(right.begin(), right.end(), 1) == kThreads);
  }
  OK(cuMemFree(on_device(values)));
}

SCENARIO(managed_memory_of_streams) {
  const Device device;
  const Kernels kernels;
  CUstream streams[2];
  for (CUstream& stream : streams) OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  constexpr size_t kCount = 50'000;
  unsigned* const one = managed(kCount, CU_MEM_ATTACH_HOST);
  unsigned* const two = managed(kCount, CU_MEM_ATTACH_HOST);
  std::iota(one, one + kCount, 0u);
  std::iota(two, two + kCount, 0u);
  OK(cuStreamAttachMemAsync(streams[0], on_device(one), 0, CU_MEM_ATTACH_SINGLE));
  OK(cuStreamAttachMemAsync(streams[1], on_device(two), kCount * sizeof(unsigned), CU_MEM_ATTACH_SINGLE));
  // One stream waits for the host while the host uses the other stream's memory.
  kernels.load({"add"});
  CUdeviceptr flag = 0;
  OK(cuMemAlloc(&flag, 4));
  OK(cuMemsetD32(flag, 0, 1));
  OK(cuCtxSynchronize());
  OK(cuStreamWaitValue32(streams[0], flag, 1, CU_STREAM_WAIT_VALUE_EQ));
  add(kernels, one, 1, kCount, streams[0]);
  for (unsigned round = 1; round <= 3; ++round) {
    add(kernels, two, 1, kCount, streams[1]);
    OK(cuStreamSynchronize(streams[1]));
    EXPECT(counts_from(two, kCount, round));
  }
  // The same if the memory is attached differently before the host uses it.
  add(kernels, two, 0, kCount, streams[1]);
  OK(cuStreamSynchronize(streams[1]));
  OK(cuStreamAttachMemAsync(streams[1], on_device(two), 0, CU_MEM_ATTACH_HOST));
  EXPECT(counts_from(two, kCount, 3));
  OK(cuStreamAttachMemAsync(streams[1], on_device(two), 0, CU_MEM_ATTACH_SINGLE));
  OK(cuStreamWriteValue32(streams[1], flag, 1, 0));
  OK(cuStreamSynchronize(streams[0]));
  EXPECT(counts_from(one, kCount, 1));
  OK(cuStreamAttachMemAsync(streams[0], on_device(one), 0, CU_MEM_ATTACH_GLOBAL));
  OK(cuStreamDestroy(streams[1]));  // attached memory becomes global again
  add(kernels, one, 1, kCount);
  add(kernels, two, 1, kCount);
  OK(cuCtxSynchronize());
  EXPECT(counts_from(one, kCount, 2) && counts_from(two, kCount, 4));
}

// cuStreamAttachMemAsync is an operation of its stream: the call returns while another stream is busy, which
// the program lets continue only later.
SCENARIO(managed_memory_attached_while_the_device_is_at_it) {
  const Device device;
  const Kernels kernels;
  CUstream streams[2];
  for (CUstream& stream : streams) OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  constexpr size_t kCount = 50'000;
  unsigned* const values = managed(kCount);
  std::iota(values, values + kCount, 0u);
  kernels.load({"add"});
  CUdeviceptr flag = 0;
  OK(cuMemAlloc(&flag, 4));
  for (const unsigned to : {CU_MEM_ATTACH_HOST, CU_MEM_ATTACH_SINGLE, CU_MEM_ATTACH_GLOBAL}) {
    OK(cuMemsetD32(flag, 0, 1));
    OK(cuCtxSynchronize());
    const unsigned first = values[0];
    OK(cuStreamWaitValue32(streams[0], flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    add(kernels, values, 1, kCount, streams[0]);
    OK(cuStreamAttachMemAsync(streams[1], on_device(values), 0, to));
    OK(cuStreamWriteValue32(streams[1], flag, 1, 0));
    OK(cuStreamSynchronize(streams[0]));
    OK(cuStreamSynchronize(streams[1]));
    EXPECT(counts_from(values, kCount, first + 1));
    OK(cuStreamAttachMemAsync(streams[1], on_device(values), 0, CU_MEM_ATTACH_GLOBAL));
  }
}

// The null stream waits for the stream to which memory is attached, and its kernels use that memory.
SCENARIO(managed_memory_of_a_stream_in_the_null_stream) {
  const Device device;
  const Kernels kernels;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  constexpr size_t kCount = 50'000;
  unsigned* const values = managed(kCount, CU_MEM_ATTACH_GLOBAL);
  OK(cuStreamAttachMemAsync(stream, on_device(values), 0, CU_MEM_ATTACH_SINGLE));
  OK(cuStreamSynchronize(stream));
  for (unsigned round = 0; round < 3; ++round) {
    std::iota(values, values + kCount, round);
    add(kernels, values, 1, kCount);
    add(kernels, values, 1, kCount, stream);
    add(kernels, values, 1, kCount);
    OK(cuCtxSynchronize());
    EXPECT(counts_from(values, kCount, round + 3));
  }
}

namespace {
sigjmp_buf back;
char* forbidden = nullptr;
volatile int handled = 0;
void on_fault(int, siginfo_t* info, void*) {
  if (info->si_addr != forbidden) _exit(3);
  handled = handled + 1;
  siglongjmp(back, 1);
}
void take_faults() {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  OK(static_cast<CUresult>(sigaction(SIGSEGV, &action, nullptr)));
}
void touch_the_forbidden(int times) {
  if (sigsetjmp(back, 1) == 0) *static_cast<volatile char*>(forbidden) = 1;
  EXPECT(handled == times);
}
}  // namespace

SCENARIO(managed_memory_and_signal_handlers) {
  const Device device;
  const Kernels kernels;
  forbidden = static_cast<char*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  take_faults();  // before the first managed memory
  std::vector<char> stack(64 * 1024);
  stack_t alternate{};
  alternate.ss_sp = stack.data();
  alternate.ss_size = stack.size();
  EXPECT(sigaltstack(&alternate, nullptr) == 0);
  constexpr size_t kCount = 100'000;
  unsigned* const values = managed(kCount);
  std::iota(values, values + kCount, 0u);
  touch_the_forbidden(1);
  add(kernels, values, 1, kCount);
  OK(cuCtxSynchronize());
  EXPECT(counts_from(values, kCount, 1));
  touch_the_forbidden(2);
  take_faults();  // again, replacing the current handler
  touch_the_forbidden(3);
  add(kernels, values, 1, kCount);
  OK(cuCtxSynchronize());
  EXPECT(counts_from(values, kCount, 2));
  touch_the_forbidden(4);
  touch_the_forbidden(5);
}

SCENARIO(managed_memory_in_system_calls) {
  const Device device;
  const Kernels kernels;
  constexpr size_t kCount = 200'000, kBytes = kCount * sizeof(unsigned);
  char name[] = "/tmp/gpupool-managed-XXXXXX";
  const int file = mkstemp(name);
  EXPECT(file >= 0);
  unlink(name);
  std::vector<unsigned> plain(kCount);
  std::iota(plain.begin(), plain.end(), 0u);
  EXPECT(pwrite(file, plain.data(), kBytes, 0) == static_cast<ssize_t>(kBytes));
  unsigned* const values = managed(kCount);
  EXPECT(pread(file, values, kBytes, 0) ==
         static_cast<ssize_t>(kBytes));  // into memory that no kernel has used
  add(kernels, values, 1, kCount);
#if CUDA_VERSION >= 13000
  OK(cuMemPrefetchAsync(on_device(values), kBytes, CUmemLocation{CU_MEM_LOCATION_TYPE_HOST, {0}}, 0,
                        nullptr));
#else
  OK(cuMemPrefetchAsync(on_device(values), kBytes, CU_DEVICE_CPU, nullptr));
#endif
  OK(cuStreamSynchronize(nullptr));
  EXPECT(pwrite(file, values, kBytes, 0) == static_cast<ssize_t>(kBytes));
  EXPECT(pread(file, plain.data(), kBytes, 0) == static_cast<ssize_t>(kBytes));
  EXPECT(counts_from(plain.data(), kCount, 1));
  EXPECT(pread(file, values, kBytes / 2, kBytes / 2) == static_cast<ssize_t>(kBytes / 2));
  add(kernels, values, 1, kCount);
  OK(cuCtxSynchronize());
  EXPECT(values[0] == kCount / 2 + 2 && values[kCount - 1] == kCount + 1);
}

SCENARIO(managed_memory_in_graphs) {
  const Device device;
  const Kernels kernels;
  constexpr size_t kCount = 60'000, kBytes = kCount * sizeof(unsigned);
  unsigned* const values = managed(kCount);
  unsigned* const result = managed(kCount);
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  add(kernels, values, 1, kCount, stream);
  OK(cuMemcpyHtoDAsync(on_device(result), values, kBytes, stream));  // as the host side of a copy
  struct Seen {
    const unsigned* values;
    unsigned first;
  } seen{result, 0};
  OK(cuLaunchHostFunc(
      stream,
      [](void* user) {
        auto* const what = static_cast<Seen*>(user);
        what->first = what->values[0];
      },
      &seen));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(stream, &graph));
  CUgraphExec exec = nullptr;
  OK(cuGraphInstantiate(&exec, graph, 0));
  for (unsigned round = 1; round <= 3; ++round) {
    std::iota(values, values + kCount, 10 * round);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    EXPECT(seen.first == 10 * round + 1);
    EXPECT(counts_from(result, kCount, 10 * round + 1) && counts_from(values, kCount, 10 * round + 1));
  }
}

SCENARIO(managed_memory_says_what_it_is) {
  const Device device;
  constexpr size_t kBytes = 1 << 20;
  unsigned* const values = managed(kBytes / sizeof(unsigned));
  int is_managed = 0, supported = 0;
  unsigned type = 0;
  CUdeviceptr address = 0;
  void* host = nullptr;
  OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, on_device(values + 5)));
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, on_device(values + 5)));
  OK(cuPointerGetAttribute(&address, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, on_device(values + 5)));
  OK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, on_device(values + 5)));
  OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, device.device));
  EXPECT(is_managed == 1 && type == CU_MEMORYTYPE_DEVICE && address == on_device(values + 5) &&
         host == values + 5 && supported == 1);
  OK(cuMemFree(on_device(values)));
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, on_device(values)));
}

SCENARIO(mapped_pinned_memory) {
  const Device device;
  const Kernels kernels;
  constexpr size_t kCount = 200'000, kBytes = kCount * sizeof(unsigned);
  for (const unsigned flags : {CU_MEMHOSTALLOC_DEVICEMAP, 0}) {
    unsigned* values = nullptr;
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&values), kBytes, flags));
    std::iota(values, values + kCount, 0u);
    CUdeviceptr address = 0;
    OK(cuMemHostGetDevicePointer(&address, values + 10, 0));
    for (unsigned round = 1; round <= 3; ++round) {
      add(kernels, reinterpret_cast<unsigned*>(address) - 10, 1, kCount);
      OK(cuCtxSynchronize());
      EXPECT(counts_from(values, kCount, 2 * round - 1));
      for (size_t i = 0; i < kCount; ++i) ++values[i];
    }
    // Copies still treat the memory as pinned.
    CUdeviceptr memory = 0;
    OK(cuMemAlloc(&memory, kBytes));
    OK(cuMemcpyHtoDAsync(memory, values, kBytes, nullptr));
    add(kernels, reinterpret_cast<unsigned*>(memory), 1, kCount);
    OK(cuMemcpyDtoHAsync(values, memory, kBytes, nullptr));
    OK(cuStreamSynchronize(nullptr));
    EXPECT(counts_from(values, kCount, 7));
    OK(cuMemFree(memory));
    OK(cuMemFreeHost(values));
  }
}

SCENARIO(pinned_memory_given_to_kernels) {
  const Device device;
  const Kernels kernels;
  constexpr size_t kCount = 100'000, kBytes = kCount * sizeof(unsigned);
  unsigned* values = nullptr;
  CUdeviceptr memory = 0;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&values), kBytes));
  OK(cuMemAlloc(&memory, kBytes));
  std::iota(values, values + kCount, 0u);
  OK(cuMemcpyHtoDAsync(memory, values, kBytes, nullptr));
  add(kernels, reinterpret_cast<unsigned*>(memory), 5, kCount);
  OK(cuMemcpyDtoHAsync(values, memory, kBytes, nullptr));
  add(kernels, values, 1, kCount);  // unified addressing: the host pointer is valid in kernels
  OK(cuCtxSynchronize());
  EXPECT(counts_from(values, kCount, 6));
  add(kernels, values + 1, 1, kCount - 1);
  OK(cuCtxSynchronize());
  EXPECT(values[0] == 6 && counts_from(values + 1, kCount - 1, 8));
  OK(cuMemFreeHost(values));
  OK(cuMemFree(memory));
}

SCENARIO(managed_memory_and_fork) {
  const Device device;
  const Kernels kernels;
  constexpr size_t kCount = 10'000;
  unsigned* const values = managed(kCount);
  std::iota(values, values + kCount, 0u);
  const pid_t child = fork();
  if (child == 0) {
    *static_cast<volatile unsigned*>(values) = 99;
    _exit(0);
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  add(kernels, values, 1, kCount);
  OK(cuCtxSynchronize());
  EXPECT(counts_from(values, kCount, 1));
}

// Prints "ready" when the test may kill the server, and reads the memory after SIGUSR1.
SCENARIO(managed_memory_of_a_lost_server) {
  const Device device;
  const Kernels kernels;
  constexpr size_t kCount = 100'000;
  unsigned* const values = managed(kCount);
  add(kernels, values, 1, kCount);
  OK(cuCtxSynchronize());
  static sem_t told;  // posted by a signal handler, since any thread may get the signal
  sem_init(&told, 0, 0);
  signal(SIGUSR1, [](int) { sem_post(&told); });
  std::printf("ready\n");
  std::fflush(stdout);
  while (sem_wait(&told) != 0) EXPECT(errno == EINTR);
  std::printf("%u\n", *static_cast<volatile unsigned*>(values));
}

}  // namespace app
