// Processes that share device memory: quota charges, death of one process, and isolation between tenants.
#include <signal.h>

#include <fstream>

#include "tests/e2e/apps/interprocess.h"

using namespace app;

// --- Quotas: 8 granules for both programs ---

SCENARIO(interprocess_survivor) {
  Peer other = start("interprocess_survivor_other");
  Device device;
  other.say('g');
  const auto handle = other.receive<CUipcMemHandle>();
  int descriptor = -1;
  const auto all = other.receive<size_t>(&descriptor);
  EXPECT(free_bytes() == all - 6 * kGranule);
  CUdeviceptr opened = 0;
  CUmemGenericAllocationHandle imported = 0;
  OK(cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT(free_bytes() == all - 6 * kGranule);
  EXPECT(::kill(other.process, SIGKILL) == 0 && ::waitpid(other.process, nullptr, 0) == other.process);
  // One granule was not shared. The others remain, and remain charged.
  await_free(all - 5 * kGranule);
  for (int i = 0; i < 20; ++i) {
    EXPECT(free_bytes() == all - 5 * kGranule);
    pause_briefly();
  }
  for (const uint8_t value : download<uint8_t>(opened, 3 * kGranule)) EXPECT(value == 0x77);
  CUdeviceptr none = 0;
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&none, all - 4 * kGranule));
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  OK(cuIpcCloseMemHandle(opened));
  EXPECT(free_bytes() == all - 2 * kGranule);
  OK(cuMemRelease(imported));
  EXPECT(free_bytes() == all);
  std::printf("memory outlived its maker\n");
}

SCENARIO(interprocess_survivor_other) {
  const Peer other;
  other.await('g');
  Device device;
  const size_t all = free_bytes();
  CUdeviceptr shared = 0, own = 0;
  OK(cuMemAlloc(&own, kGranule));
  OK(cuMemAlloc(&shared, 3 * kGranule));
  OK(cuMemsetD8(shared, 0x77, 3 * kGranule));
  OK(cuCtxSynchronize());
  CUipcMemHandle handle{};
  OK(cuIpcGetMemHandle(&handle, shared));
  const CUmemAllocationProp prop = shareable();
  CUmemGenericAllocationHandle memory = 0;
  OK(cuMemCreate(&memory, 2 * kGranule, &prop, 0));
  int descriptor = -1;
  OK(cuMemExportToShareableHandle(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  other.send(handle);
  other.send(all, descriptor);
  (void)other.receive<char>();  // until it is killed
}

// A process dies while it uses memory that it has opened: the exporting process keeps the memory, and its
// free releases it.
SCENARIO(interprocess_visitor) {
  Peer other = start("interprocess_visitor_other");
  Device device;
  const size_t all = free_bytes();
  CUdeviceptr shared = 0;
  OK(cuMemAlloc(&shared, 3 * kGranule));
  OK(cuMemsetD8(shared, 0, 3 * kGranule));
  OK(cuCtxSynchronize());
  CUipcMemHandle handle{};
  OK(cuIpcGetMemHandle(&handle, shared));
  other.send(handle);
  other.await('w');
  EXPECT(::kill(other.process, SIGKILL) == 0 && ::waitpid(other.process, nullptr, 0) == other.process);
  await_free(all - 3 * kGranule);  // the peer's own memory is free again
  for (int i = 0; i < 20; ++i) {
    EXPECT(free_bytes() == all - 3 * kGranule);
    pause_briefly();
  }
  for (const uint8_t value : download<uint8_t>(shared + kGranule, 2 * kGranule)) EXPECT(value == 0x22);
  OK(cuIpcGetMemHandle(&handle, shared));
  OK(cuMemFree(shared));
  await_free(all);
  std::printf("memory outlived its visitor\n");
}

SCENARIO(interprocess_visitor_other) {
  const Peer other;
  const auto handle = other.receive<CUipcMemHandle>();
  Device device;
  Kernels kernels;
  CUdeviceptr opened = 0;
  const size_t before = free_bytes();
  OK(cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT(free_bytes() == before);
  OK(cuMemsetD8(opened + kGranule, 0x22, 2 * kGranule));
  OK(cuCtxSynchronize());
  OK(kernels.launch("burn_forever", 1, 1, nullptr, opened));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  other.say('w');
  (void)other.receive<char>();  // until it is killed
}

// --- Tenants ---

// [file]: writes handles of memory and an event to the file and keeps both until it is killed.
SCENARIO(interprocess_offer) {
  Device device;
  CUdeviceptr memory = 0;
  CUevent event = nullptr;
  OK(cuMemAlloc(&memory, 4096));
  OK(cuMemsetD8(memory, 0x42, 4096));
  OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  OK(cuCtxSynchronize());
  CUipcMemHandle of_memory{};
  CUipcEventHandle of_event{};
  OK(cuIpcGetMemHandle(&of_memory, memory));
  OK(cuIpcGetEventHandle(&of_event, event));
  std::ofstream file(arguments.at(0), std::ios::binary);
  file.write(reinterpret_cast<const char*>(&of_memory), sizeof of_memory);
  file.write(reinterpret_cast<const char*>(&of_event), sizeof of_event);
  file.close();
  std::printf("offered\n");
  std::fflush(stdout);
  for (;;) ::pause();
}

// [file, "yes" or "no"]: opens the handles, which must succeed or fail.
SCENARIO(interprocess_take) {
  Device device;
  CUipcMemHandle of_memory{};
  CUipcEventHandle of_event{};
  std::ifstream file(arguments.at(0), std::ios::binary);
  file.read(reinterpret_cast<char*>(&of_memory), sizeof of_memory);
  file.read(reinterpret_cast<char*>(&of_event), sizeof of_event);
  EXPECT(file.good());
  CUdeviceptr memory = 0;
  CUevent event = nullptr;
  if (arguments.at(1) == "no") {
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuIpcOpenMemHandle(&memory, of_memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcOpenEventHandle(&event, of_event));
    return;
  }
  // Forged handles: a bit of the secret, the offset, or the server changed.
  for (size_t at = 16; at < 40; ++at) {
    CUipcMemHandle forged = of_memory;
    reinterpret_cast<char*>(&forged)[at] ^= 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&memory, forged, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  }
  CUipcMemHandle beyond = of_memory;
  reinterpret_cast<char*>(&beyond)[44] ^= 1;  // offset
  GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&memory, beyond, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CUipcMemHandle elsewhere = of_memory;
  reinterpret_cast<char*>(&elsewhere)[8] ^= 1;  // server
  GIVES(CUDA_ERROR_NOT_SUPPORTED, cuIpcOpenMemHandle(&memory, elsewhere, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcOpenMemHandle(&memory, of_memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcOpenEventHandle(&event, of_event));
  OK(cuEventSynchronize(event));
  for (const uint8_t value : download<uint8_t>(memory, 4096)) EXPECT(value == 0x42);
}
