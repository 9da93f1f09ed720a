// Processes that share events.
#include <signal.h>

#include "tests/e2e/apps/interprocess.h"

using namespace app;

namespace {

// Opens the event while a green context is current; the event belongs to the device's primary context.
CUevent open_in_green_context(const CUipcEventHandle& handle, Device& device) {
  CUevent event = nullptr;
#if CUDA_VERSION >= 12040
  CUdevResource all{}, part{};
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
  unsigned groups = 1;
  OK(cuDeviceGetDevResource(device.device, &all, CU_DEV_RESOURCE_TYPE_SM));
  OK(cuDevSmResourceSplitByCount(&part, &groups, &all, nullptr, 0, 1));
  OK(cuDevResourceGenerateDesc(&description, &part, 1));
  OK(cuGreenCtxCreate(&green, description, device.device, CU_GREEN_CTX_DEFAULT_STREAM));
  OK(cuCtxFromGreenCtx(&context, green));
  OK(cuCtxSetCurrent(context));
#endif
  OK(cuIpcOpenEventHandle(&event, handle));
  OK(cuCtxSetCurrent(device.context));
  return event;
}

}  // namespace

// --- cuIpc...Event ---

SCENARIO(interprocess_events) {
  Peer other = start("interprocess_events_other");
  Device device;
  Kernels kernels;
  CUdeviceptr values = 0, scratch = 0;
  CUstream stream = nullptr;
  OK(cuMemAlloc(&values, kCount * 4));
  OK(cuMemAlloc(&scratch, 4096));
  OK(cuMemsetD32(values, 0, kCount));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuCtxSynchronize());
  CUevent event = nullptr, plain = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
  CUipcMemHandle memory{};
  CUipcEventHandle handle{};
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&handle, plain));
  OK(cuIpcGetMemHandle(&memory, values));
  other.send(memory);
  for (unsigned round = 0; round < 10; ++round) {
    // This process does not wait for the work; the peer's stream must.
    OK(kernels.launch("burn", 1, 32, stream, scratch, 400'000u));
    OK(kernels.launch("fill", blocks(kCount), 256, stream, values, round, kCount));
    OK(cuEventRecord(event, stream));
    if (round == 0) {
      OK(cuIpcGetEventHandle(&handle, event));
      other.send(handle);
    } else {
      other.say('r');
    }
    other.await('a');
    // In the other direction: the peer has recorded the event after its own work.
    OK(cuStreamWaitEvent(stream, event, 0));
    OK(kernels.launch("add", blocks(kCount), 256, stream, values, 1000u, kCount));
    OK(cuStreamSynchronize(stream));
    expect_values(values, round + 100 + 1000);
    OK(cuEventQuery(event));
  }
  other.ends_well();
  CUevent own = nullptr;
  GIVES(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenEventHandle(&own, handle));
  OK(cuEventDestroy(event));
  std::printf("events were shared\n");
}

SCENARIO(interprocess_events_other) {
  const Peer other;
  Device device;
  Kernels kernels;
  CUdeviceptr values = 0, scratch = 0;
  CUevent event = nullptr, twin = nullptr;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&scratch, 4096));
  const auto memory = other.receive<CUipcMemHandle>();
  OK(cuIpcOpenMemHandle(&values, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  for (unsigned round = 0; round < 10; ++round) {
    if (round == 0) {
      const auto handle = other.receive<CUipcEventHandle>();
      OK(cuIpcOpenEventHandle(&event, handle));
      twin = open_in_green_context(handle, device);
      CUipcEventHandle garbage = handle;
      std::memset(&garbage, 0x5a, sizeof garbage);
      CUevent none = nullptr;
      GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcOpenEventHandle(&none, garbage));
    } else {
      other.await('r');
    }
    if (round % 2 == 0) {
      OK(cuStreamWaitEvent(stream, event, 0));
    } else {
      OK(cuEventSynchronize(event));
      OK(cuEventQuery(event));
    }
    OK(kernels.launch("burn", 1, 32, stream, scratch, 100'000u));
    OK(kernels.launch("add", blocks(kCount), 256, stream, values, 100u, kCount));
    OK(cuEventRecord(round % 3 == 0 ? twin : event, stream));
    other.say('a');
  }
  OK(cuStreamSynchronize(stream));
  OK(cuEventDestroy(twin));
  OK(cuEventDestroy(event));
  OK(cuIpcCloseMemHandle(values));
}

// If a process dies with work before an event record, waiters for the event continue.
SCENARIO(interprocess_event_of_the_dead) {
  Peer other = start("interprocess_event_of_the_dead_other");
  Device device;
  const auto handle = other.receive<CUipcEventHandle>();
  CUevent event = nullptr;
  OK(cuIpcOpenEventHandle(&event, handle));
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamWaitEvent(stream, event, 0));
  EXPECT(::kill(other.process, SIGKILL) == 0);
  OK(cuStreamSynchronize(stream));
  std::printf("nobody waits for the dead\n");
}

SCENARIO(interprocess_event_of_the_dead_other) {
  const Peer other;
  Device device;
  Kernels kernels;
  CUdeviceptr flag = 0;
  OK(cuMemAlloc(&flag, 4));
  OK(cuMemsetD32(flag, 0u, 1));
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  OK(kernels.launch("burn_forever", 1, 1, nullptr, flag));
  OK(cuEventRecord(event, nullptr));
  CUipcEventHandle handle{};
  OK(cuIpcGetEventHandle(&handle, event));
  other.send(handle);
  (void)other.receive<char>();  // until it is killed
}

// A process opens events of processes on other devices while its own device is current.
SCENARIO(interprocess_events_of_two_devices) {
  Peer other = start("interprocess_events_of_two_devices_other");
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    Device device(ordinal);
    Kernels kernels;
    CUdeviceptr values = 0, scratch = 0;
    CUevent event = nullptr;
    OK(cuMemAlloc(&values, kCount * 4));
    OK(cuMemAlloc(&scratch, 4096));
    OK(cuMemsetD32(values, 0, kCount));
    OK(cuCtxSynchronize());
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(kernels.launch("burn", 1, 32, nullptr, scratch, 400'000u));
    OK(kernels.launch("fill", blocks(kCount), 256, nullptr, values, static_cast<unsigned>(ordinal), kCount));
    OK(cuEventRecord(event, nullptr));
    CUipcMemHandle memory{};
    CUipcEventHandle handle{};
    OK(cuIpcGetMemHandle(&memory, values));
    OK(cuIpcGetEventHandle(&handle, event));
    other.send(memory);
    other.send(handle);
    other.await('d');
  }
  other.ends_well();
  std::printf("events of two devices were shared\n");
}

SCENARIO(interprocess_events_of_two_devices_other) {
  const Peer other;
  Device device(0);
  for (unsigned ordinal = 0; ordinal < 2; ++ordinal) {
    CUdeviceptr values = 0;
    CUevent event = nullptr;
    CUstream stream = nullptr;
    const auto memory = other.receive<CUipcMemHandle>();
    const auto handle = other.receive<CUipcEventHandle>();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuIpcOpenMemHandle(&values, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenEventHandle(&event, handle));
    OK(cuStreamWaitEvent(stream, event, 0));
    std::vector<uint32_t> seen(kCount);
    OK(cuMemcpyDtoHAsync(seen.data(), values, kCount * 4, stream));
    OK(cuStreamSynchronize(stream));
    for (uint32_t i = 0; i < kCount; ++i) EXPECT(seen[i] == ordinal + i);
    OK(cuEventDestroy(event));
    OK(cuIpcCloseMemHandle(values));
    other.say('d');
  }
}
