// Finds out which kinds of work in a blocking stream wait for earlier work of the legacy stream, and the
// other way round.
#include "probe.h"

using namespace probe;

namespace {

constexpr milliseconds kPatience{150};  // work that was not held up is done long before

struct StreamWork {
  const char* name;
  // Gives the stream work; `completed` is an event that is complete.
  std::function<void(CUstream stream, CUevent completed, const Kernels& kernels, const Word& word)> give;
};
const StreamWork kStreamWork[] = {
    {"event_record", [](CUstream, CUevent, const Kernels&, const Word&) {}},
    {"wait_event", [](CUstream stream, CUevent completed, const Kernels&,
                      const Word&) { CHECK(cuStreamWaitEvent(stream, completed, 0)); }},
    {"write_value",
     [](CUstream stream, CUevent, const Kernels&, const Word& word) {
       CHECK(cuStreamWriteValue32(stream, word.device, 7, CU_STREAM_WRITE_VALUE_DEFAULT));
     }},
    {"host_function",
     [](CUstream stream, CUevent, const Kernels&, const Word&) {
       CHECK(cuLaunchHostFunc(
           stream, [](void*) {}, nullptr));
     }},
    {"memset", [](CUstream stream, CUevent, const Kernels&,
                  const Word& word) { CHECK(cuMemsetD8Async(word.device, 1, 4, stream)); }},
    {"kernel",
     [](CUstream stream, CUevent, const Kernels& kernels, const Word&) {
       CUdeviceptr data = 0;
       void* parameters[] = {&data};
       CHECK(cuLaunchKernel(kernels.function("nothing"), 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
     }},
};

// Gives the stream work that is held until the CPU stores 1 to the word.
void hold(CUstream stream, const Word& word, const Kernels& kernels) {
  word.store(0);
  CHECK(cuStreamWaitValue32(stream, word.device, 1, CU_STREAM_WAIT_VALUE_GEQ));
  CUdeviceptr data = 0;
  void* parameters[] = {&data};
  CHECK(cuLaunchKernel(kernels.function("nothing"), 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
}

// Holds `first` with a value, then gives `second` work and an event. Returns whether the event waits.
bool waits(const StreamWork& work, CUstream first, CUstream second, const Kernels& kernels) {
  const Word held, word;
  CUevent completed = nullptr, event = nullptr;
  CHECK(cuEventCreate(&completed, CU_EVENT_DISABLE_TIMING));
  CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CHECK(cuEventRecord(completed, second));
  CHECK(cuCtxSynchronize());
  hold(first, held, kernels);
  work.give(second, completed, kernels, word);
  CHECK(cuEventRecord(event, second));
  const bool done = eventually([&] { return cuEventQuery(event) == CUDA_SUCCESS; }, kPatience);
  held.store(1);
  CHECK(cuCtxSynchronize());
  return !done;
}

}  // namespace

PROBE(legacy_stream_order) {
  const Device device;
  const Kernels kernels;
  CUstream blocking = nullptr;
  CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  CUdeviceptr data = 0;
  void* parameters[] = {&data};
  CHECK(cuLaunchKernel(kernels.function("nothing"), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  CHECK(cuCtxSynchronize());
  Object behind_legacy, behind_blocking;
  for (const StreamWork& work : kStreamWork) {
    step(work.name);
    behind_legacy.add(work.name, waits(work, nullptr, blocking, kernels));
    behind_blocking.add(work.name, waits(work, blocking, nullptr, kernels));
  }
  see("in_a_blocking_stream_waits_for_the_legacy_stream", behind_legacy);
  see("in_the_legacy_stream_waits_for_a_blocking_stream", behind_blocking);
  // Without any work in the blocking stream.
  step("synchronise an idle blocking stream");
  const Word held;
  hold(nullptr, held, kernels);
  Caller caller(device.context);
  caller.begin([blocking] { return cuStreamSynchronize(blocking); });
  see("synchronise_of_an_idle_blocking_stream_waits", !caller.wait(kPatience).has_value());
  held.store(1);
  CHECK(cuCtxSynchronize());
  // With nothing but a recorded event in it.
  CUevent event = nullptr;
  CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  hold(nullptr, held, kernels);
  CHECK(cuEventRecord(event, blocking));
  see("query_of_a_stream_with_an_event", name_of(cuStreamQuery(blocking)));
  Caller second(device.context);
  second.begin([blocking] { return cuStreamSynchronize(blocking); });
  see("synchronise_of_a_stream_with_an_event_waits", !second.wait(kPatience).has_value());
  held.store(1);
  CHECK(cuCtxSynchronize());
}
