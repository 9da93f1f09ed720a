// How much work the driver's queue of a held stream accepts, and which other streams are blocked by it.
#include "queues.h"

#include <atomic>
#include <cstdlib>
#include <thread>

#include "probe.h"

using namespace probe;

namespace probe {

Filler::Filler(CUcontext context, std::function<CUresult()> operation)
    : progress_(std::make_shared<Progress>()) {
  std::thread([context, operation = std::move(operation), progress = progress_] {
    CUresult result = cuCtxSetCurrent(context);
    for (int i = 0; result == CUDA_SUCCESS && !progress->stop && i < kMostOperations; ++i) {
      result = operation();
      ++progress->operations;
    }
    progress->result = result;
    progress->ended = true;
  }).detach();
}

bool Filler::await_blocked() const {
  constexpr milliseconds kQuiet{250}, kLongest{8000};
  const auto stop = Clock::now() + kLongest;
  int last = -1;
  while (!progress_->ended && Clock::now() < stop) {
    const int now = progress_->operations;
    if (now == last) return true;
    last = now;
    std::this_thread::sleep_for(kQuiet);
  }
  progress_->stop = true;
  return false;
}

}  // namespace probe

namespace {

struct QueuedOperation {
  const char* name;
  // Makes the operation after the stream is held.
  std::function<CUresult()> (*make)(const Kernels& kernels, const Parked& parked);
};
const QueuedOperation kQueuedOperations[] = {
    {"launches",
     [](const Kernels& kernels, const Parked& parked) -> std::function<CUresult()> {
       return [function = kernels.function("nothing"), stream = parked.stream] {
         CUdeviceptr data = 0;
         void* parameters[] = {&data};
         return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
       };
     }},
    {"event_records",
     [](const Kernels&, const Parked& parked) -> std::function<CUresult()> {
       CUevent event = nullptr;
       CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
       return [event, stream = parked.stream] { return cuEventRecord(event, stream); };
     }},
    {"host_functions",
     [](const Kernels&, const Parked& parked) -> std::function<CUresult()> {
       return [stream = parked.stream] {
         return cuLaunchHostFunc(
             stream, [](void*) {}, nullptr);
       };
     }},
    {"waits_and_copies",
     [](const Kernels&, const Parked& parked) -> std::function<CUresult()> {
       const Word from;
       CUdeviceptr to = 0;
       CHECK(cuMemAlloc(&to, 4096));
       return [from, to, word = parked.word, stream = parked.stream] {
         const CUresult result = cuStreamWaitValue32(stream, word.device, 1, CU_STREAM_WAIT_VALUE_GEQ);
         return result == CUDA_SUCCESS ? cuMemcpyHtoDAsync(to, from.host, 4096, stream) : result;
       };
     }},
};

void fill_queue(const QueuedOperation& operation) {
  const Device device;
  const Kernels kernels;
  CUdeviceptr data = 0;
  void* parameters[] = {&data};
  CHECK(cuLaunchKernel(kernels.function("nothing"), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters,
                       nullptr));  // loads the kernel before the stream is held
  CHECK(cuCtxSynchronize());
  const Parked parked;
  Filler filler(device.context, operation.make(kernels, parked));
  step("enqueue behind a stream that waits");
  const bool blocked = filler.await_blocked();
  see("blocks", blocked);
  see("operations", static_cast<double>(filler.operations()));
  see("call_result", name_of(filler.result()));
  step("release by a store of the CPU");
  const int filled = filler.operations();
  parked.release();
  const bool goes_on = !blocked || eventually([&] { return filler.operations() > filled || filler.ended(); },
                                              milliseconds(5000));
  if (blocked) see("goes_on_after_cpu_store", goes_on);
  if (!goes_on)
    throw Failure(
        "the blocked call does not return after the CPU's store to the word that the stream waits for");
  filler.stop();
  step("synchronise after the release");
  CHECK(cuStreamSynchronize(parked.stream));
}

// Holds the first of 64 streams and launches a kernel in each: streams that share its hardware queue cannot
// proceed.
void use_64_streams(const char* connections, bool by_host_function) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
  constexpr size_t kStreams = 64;
  const Device device;
  const Kernels kernels;
  const CUfunction function = kernels.function("nothing");
  static std::atomic<bool> open{false};
  std::vector<CUstream> streams(kStreams);
  std::vector<CUevent> events(kStreams);
  for (size_t i = 0; i < kStreams; ++i) {
    CHECK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
  }
  const Word word;
  CUdeviceptr data = 0;
  void* parameters[] = {&data};
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, streams[1], parameters,
                       nullptr));  // loads the kernel before the stream is held
  CHECK(cuCtxSynchronize());
  if (by_host_function)
    CHECK(cuLaunchHostFunc(
        streams[0], [](void*) { open.wait(false); }, nullptr));
  else
    CHECK(cuStreamWaitValue32(streams[0], word.device, 1, CU_STREAM_WAIT_VALUE_GEQ));
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, streams[0], parameters, nullptr));
  step("launch in the other streams");
  for (size_t i = 1; i < kStreams; ++i) {
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, streams[i], parameters, nullptr));
    CHECK(cuEventRecord(events[i], streams[i]));
  }
  step("query the other streams");
  const auto done = [&](size_t i) { return cuEventQuery(events[i]) == CUDA_SUCCESS; };
  eventually(
      [&] {
        size_t moved = 0;
        for (size_t i = 1; i < kStreams; ++i) moved += done(i);
        return moved == kStreams - 1;
      },
      milliseconds(1000));
  std::string stuck;
  size_t moved = 0;
  for (size_t i = 1; i < kStreams; ++i) {
    if (done(i))
      ++moved;
    else
      stuck += (stuck.empty() ? "" : " ") + std::to_string(i);
  }
  see("moved_of_63", static_cast<double>(moved));
  see("stuck", stuck);
  word.store(1);
  open = true;
  open.notify_all();
  step("cuCtxSynchronize after the release");
  CHECK(cuCtxSynchronize());
}

const bool queue_probes_registered = [] {
  for (const QueuedOperation& operation : kQueuedOperations) {
    Probe(std::string("queue_") + operation.name, [&operation] { fill_queue(operation); });
    Probe(std::string("queue_4x_") + operation.name, [&operation] {
      setenv("CUDA_SCALE_LAUNCH_QUEUES", "4x", 1);
      fill_queue(operation);
    });
  }
  for (const char* const connections : {"8", "32"}) {
    Probe(std::string("streams_wait_value_") + connections,
          [connections] { use_64_streams(connections, false); });
    Probe(std::string("streams_host_function_") + connections,
          [connections] { use_64_streams(connections, true); });
  }
  return true;
}();

}  // namespace
