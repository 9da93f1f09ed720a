// Which calls return on one thread while another stream is held, or while another thread is blocked in a full
// queue, and whether a store of the CPU releases that stream. Each call is a separate probe with its own
// process, since a call that blocks may hold locks that block the next one.
#include <cstdlib>

#include "probe.h"
#include "queues.h"

using namespace probe;

namespace {

// Objects that the calls need, created before any stream is held.
struct Things {
  Things() {
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&spare, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventRecord(done, other));
    CHECK(cuMemAlloc(&memory, kMiB));
    CHECK(cuMemAlloc(&freed, 64 * kMiB));
    CHECK(cuMemHostAlloc(&pinned, kMiB, 0));
    CHECK(cuMemHostAlloc(&pinned_freed, kMiB, 0));
    CHECK(cuMemHostRegister(registered, sizeof registered, 0));
    loaded = kernels.function("nothing");
    CHECK(launch(loaded));
    CHECK(cuModuleLoadData(&late_module, kLateKernel));
    CHECK(cuModuleGetFunction(&late, late_module, "late"));
    CHECK(cuModuleLoadData(&unloaded, kLateKernel));
    CHECK(cuLibraryLoadData(&library, kLateKernel, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CHECK(cuLibraryGetKernel(&kernel, library, "late"));
    big_local = kernels.function("big_local");
    CHECK(cuMemsetD8(memory, 0, kMiB));
    CHECK(cuCtxSynchronize());
  }
  CUresult launch(CUfunction function) {
    void* parameters[] = {&memory};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, other, parameters, nullptr);
  }

  alignas(4096) static inline char registered[64 << 10], register_now[64 << 10];
  Kernels kernels;
  CUstream other = nullptr, spare = nullptr;
  CUevent event = nullptr, done = nullptr;
  CUdeviceptr memory = 0, freed = 0;
  void *pinned = nullptr, *pinned_freed = nullptr;
  CUfunction loaded = nullptr, late = nullptr, big_local = nullptr;
  CUmodule late_module = nullptr, unloaded = nullptr;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
};

struct Call {
  const char* name;
  CUresult (*body)(Things&, const Device&, const Word&);
  bool context = true;  // the calling thread has a current context
};
// clang-format 16 does not understand lambdas behind a macro.
// clang-format off
#define CALL \
  []([[maybe_unused]] Things& t, [[maybe_unused]] const Device& d, [[maybe_unused]] const Word& w) -> CUresult
const Call kCalls[] = {
    {"write_value", CALL {
       return cuStreamWriteValue32(t.other, w.device + 64, 1, CU_STREAM_WRITE_VALUE_DEFAULT);
     }},
    {"launch", CALL { return t.launch(t.loaded); }},
    {"first_launch", CALL { return t.launch(t.late); }},
    {"first_launch_with_local_memory", CALL { return t.launch(t.big_local); }},
    {"copy", CALL { return cuMemcpyHtoDAsync(t.memory, t.pinned, 4096, t.other); }},
    {"event_record", CALL { return cuEventRecord(t.event, t.other); }},
    {"event_query", CALL { return cuEventQuery(t.done); }},
    {"event_synchronize", CALL { return cuEventSynchronize(t.done); }},
    {"event_create_destroy", CALL {
       CUevent event = nullptr;
       const CUresult result = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
       return result == CUDA_SUCCESS ? cuEventDestroy(event) : result;
     }},
    {"stream_query", CALL { return cuStreamQuery(t.other); }},
    {"stream_synchronize", CALL { return cuStreamSynchronize(t.other); }},
    {"stream_create", CALL { return cuStreamCreate(&t.spare, CU_STREAM_NON_BLOCKING); }},
    {"stream_destroy", CALL { return cuStreamDestroy(t.spare); }},
    {"ctx_set_current", CALL { return cuCtxSetCurrent(d.context); }, false},
    {"host_alloc", CALL {
       void* pinned = nullptr;
       return cuMemHostAlloc(&pinned, kMiB, 0);
     }},
    {"free_host", CALL { return cuMemFreeHost(t.pinned_freed); }},
    {"host_register", CALL { return cuMemHostRegister(Things::register_now, sizeof Things::register_now, 0); }},
    {"host_unregister", CALL { return cuMemHostUnregister(Things::registered); }},
    {"mem_alloc", CALL {
       CUdeviceptr address = 0;
       return cuMemAlloc(&address, 64 * kMiB);
     }},
    {"mem_free", CALL { return cuMemFree(t.freed); }},
    {"mem_alloc_async", CALL {
       CUdeviceptr address = 0;
       return cuMemAllocAsync(&address, 64 * kMiB, t.other);
     }},
    {"mem_get_info", CALL {
       size_t free = 0, total = 0;
       return cuMemGetInfo(&free, &total);
     }},
    {"module_load", CALL { return cuModuleLoadData(&t.late_module, kKernels); }},
    {"module_unload", CALL { return cuModuleUnload(t.unloaded); }},
    {"kernel_get_attribute", CALL {
       int value = 0;
       return cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, t.kernel, d.device);
     }},
    {"function_get_attribute", CALL {
       int value = 0;
       return cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, t.late);
     }},
};
#undef CALL
// clang-format on

void call_beside(const Call& call, bool full) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  const Device device;
  auto& things = *new Things;
  auto& caller = *new Caller(call.context ? device.context : nullptr);
  const Parked parked;
  std::optional<Filler> filler;
  if (full) {
    step("fill the queue");
    filler.emplace(device.context, [&things, &parked] {
      void* parameters[] = {&things.memory};
      return cuLaunchKernel(things.loaded, 1, 1, 1, 1, 1, 1, 0, parked.stream, parameters, nullptr);
    });
    if (!filler->await_blocked())
      throw Skip("no launch blocks here: " + std::to_string(filler->operations()) + " are queued");
    see("queued", static_cast<double>(filler->operations()));
  }
  step("call");
  caller.begin([&] { return call.body(things, device, parked.word); });
  const std::optional<double> took = caller.wait(milliseconds(500));
  see("returns", took.has_value());
  if (took) see("us", *took), see("result", name_of(caller.result()));
  step("release by a store of the CPU");
  const auto released = Clock::now();
  parked.release();
  if (!took) {
    const bool returned = caller.wait(milliseconds(5000)).has_value();
    see("returns_after_release", returned);
    if (returned) see("us_after_release", microseconds(released)), see("result", name_of(caller.result()));
  }
  auto& waiter = *new Caller(device.context);
  if (filler) filler->stop();
  waiter.begin([&] { return cuStreamSynchronize(parked.stream); });
  see("cpu_store_releases", waiter.wait(milliseconds(3000)).has_value());
}

const bool call_probes_registered = [] {
  for (const Call& call : kCalls)
    Probe(std::string("parked_") + call.name, [&call] { call_beside(call, false); });
  for (const Call& call : kCalls)
    Probe(std::string("full_") + call.name, [&call] { call_beside(call, true); });
  return true;
}();

}  // namespace
