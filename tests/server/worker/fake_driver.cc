#include "tests/server/worker/fake_driver.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>
#include <unordered_map>

namespace gpupool::worker::test {
namespace {

FakeDriver* g_driver = nullptr;
thread_local CUcontext t_current = nullptr;
thread_local bool t_in_callback = false;

using Lock = std::unique_lock<std::mutex>;

}  // namespace

CUresult enqueue(CUstream stream, std::function<bool()> work) {
  const Lock lock(driver().mutex);
  if (t_in_callback) return CUDA_ERROR_NOT_PERMITTED;
  if (!t_current) return CUDA_ERROR_INVALID_CONTEXT;
  if (driver().sticky != CUDA_SUCCESS) return driver().sticky;
  FakeStream* const state = driver().stream_locked(stream);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  state->work.push_back(std::move(work));
  driver().pump_locked();
  return CUDA_SUCCESS;
}

CUcontext current_context() {
  return t_current;
}

namespace {

CUresult set_current(CUcontext context) {
  const Lock lock(driver().mutex);
  if (context && !driver().contexts.contains(context)) return CUDA_ERROR_INVALID_CONTEXT;
  t_current = context;
  return CUDA_SUCCESS;
}
CUcontext add_context() {
  const auto context = reinterpret_cast<CUcontext>(0xc0000 + 16 * driver().next_handle++);
  driver().contexts[context] = std::make_unique<FakeStream>();
  driver().changed.notify_all();
  return context;
}
CUcontext g_primary = nullptr;
CUresult retain(CUcontext* context, CUdevice device) {
  const Lock lock(driver().mutex);
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  if (driver().primary++ == 0) {
    g_primary = add_context();
    driver().memory_used += driver().primary_bytes;
    if (driver().in_new_context) driver().in_new_context();
  }
  *context = g_primary;
  return CUDA_SUCCESS;
}
CUresult release(CUdevice) {
  const Lock lock(driver().mutex);
  if (driver().primary == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--driver().primary == 0) {
    driver().contexts.erase(g_primary);
    driver().memory_used -= driver().primary_bytes;
  }
  return CUDA_SUCCESS;
}
CUresult reset(CUdevice) {
  return CUDA_SUCCESS;
}
CUresult set_primary_flags(CUdevice, unsigned flags) {
  const Lock lock(driver().mutex);
  driver().context_flags.push_back(flags);
  return CUDA_SUCCESS;
}
CUresult create_context(CUcontext* context, unsigned flags, CUdevice) {
  const Lock lock(driver().mutex);
  driver().context_flags.push_back(flags);
  t_current = *context = add_context();
  driver().memory_used += driver().context_bytes;
  if (driver().in_new_context) driver().in_new_context();
  return CUDA_SUCCESS;
}
CUresult destroy_context(CUcontext context) {
  const Lock lock(driver().mutex);
  if (driver().contexts.erase(context) != 1) return CUDA_ERROR_INVALID_CONTEXT;
  driver().memory_used -= driver().context_bytes;
  return CUDA_SUCCESS;
}
// Succeeds without granting access to any mapping, as NVIDIA's driver does for virtual memory.
CUresult enable_peer(CUcontext peer, unsigned) {
  const Lock lock(driver().mutex);
  return driver().peers.emplace(t_current, peer).second ? CUDA_SUCCESS
                                                        : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}
CUresult disable_peer(CUcontext peer) {
  const Lock lock(driver().mutex);
  return driver().peers.erase({t_current, peer}) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
bool all_idle() {
  const auto idle = [](const auto& stream) { return !stream || stream->work.empty(); };
  return std::all_of(driver().streams.begin(), driver().streams.end(), idle) &&
         std::all_of(driver().contexts.begin(), driver().contexts.end(),
                     [&](const auto& c) { return idle(c.second); });
}
CUresult synchronize_context() {
  Lock lock(driver().mutex);
  driver().changed.wait(lock, all_idle);
  return driver().sticky;
}
CUresult get_cache(CUfunc_cache* config) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_FUNC_CACHE_PREFER_L1;
  return t_current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult create_stream(CUstream* stream, unsigned flags, int) {
  const Lock lock(driver().mutex);
  if (driver().sticky != CUDA_SUCCESS) return driver().sticky;
  driver().streams.push_back(std::make_unique<FakeStream>());
  driver().streams.back()->flags = flags;
  *stream = reinterpret_cast<CUstream>(driver().streams.back().get());
  driver().changed.notify_all();
  return CUDA_SUCCESS;
}
CUresult destroy_stream(CUstream stream) {
  const Lock lock(driver().mutex);
  for (auto& known : driver().streams) {
    if (known.get() != reinterpret_cast<FakeStream*>(stream)) continue;
    known->held = false;
    driver().pump_locked();
    known.reset();
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_HANDLE;
}
CUresult stream_flags(CUstream stream, unsigned* flags) {
  const Lock lock(driver().mutex);
  const FakeStream* const state = driver().stream_locked(stream);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = state->flags;
  return CUDA_SUCCESS;
}
CUresult query_stream(CUstream stream) {
  const Lock lock(driver().mutex);
  if (t_in_callback) return CUDA_ERROR_NOT_PERMITTED;
  if (driver().sticky != CUDA_SUCCESS) return driver().sticky;
  FakeStream* const state = driver().stream_locked(stream);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  return state->work.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult synchronize_stream(CUstream stream) {
  Lock lock(driver().mutex);
  FakeStream* const state = driver().stream_locked(stream);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  driver().changed.wait(lock, [&] { return state->work.empty(); });
  return driver().sticky;
}
CUresult host_function(CUstream stream, CUhostFn function, void* data) {
  return enqueue(stream, [function, data, state = std::make_shared<int>(0)] {
    if (*state == 0) {
      *state = 1;
      std::thread([function, data, state] {
        t_in_callback = true;
        function(data);
        const Lock lock(driver().mutex);
        *state = 2;
        driver().pump_locked();
      }).detach();
    }
    return *state == 2;
  });
}

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  return enqueue(stream, [address, value] {
    return static_cast<int32_t>(*reinterpret_cast<volatile uint32_t*>(address) - value) >= 0;
  });
}
CUresult write_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  const CUresult result = enqueue(stream, [address, value] {
    *reinterpret_cast<volatile uint32_t*>(address) = value;
    return true;
  });
  const Lock lock(driver().mutex);
  driver().pump_locked();  // a stream that waits for this value may come earlier in the order
  return result;
}
CUresult create_plain_stream(CUstream* stream, unsigned flags) {
  return create_stream(stream, flags, 0);
}
CUresult create_event(CUevent* event, unsigned) {
  const Lock lock(driver().mutex);
  if (!t_current) return CUDA_ERROR_INVALID_CONTEXT;
  if (driver().strikes_at_next_event != CUDA_SUCCESS) return driver().sticky = driver().strikes_at_next_event;
  auto* const made = new FakeEvent;
  driver().events.insert(made);
  *event = reinterpret_cast<CUevent>(made);
  return CUDA_SUCCESS;
}
FakeEvent* find_event(CUevent event) {
  auto* const known = reinterpret_cast<FakeEvent*>(event);
  return driver().events.contains(known) ? known : nullptr;
}
CUresult destroy_event(CUevent event) {
  const Lock lock(driver().mutex);
  FakeEvent* const known = find_event(event);
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  driver().events.erase(known);
  delete known;
  return CUDA_SUCCESS;
}
CUresult record_event(CUevent event, CUstream stream) {
  const auto passed = std::make_shared<bool>(false);
  {
    const Lock lock(driver().mutex);
    FakeEvent* const known = find_event(event);
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    known->passed = passed;
  }
  return enqueue(stream, [passed] { return *passed = true; });
}
CUresult wait_event(CUstream stream, CUevent event, unsigned) {
  const auto passed = driver().locked([&] {
    FakeEvent* const known = find_event(event);
    return known ? known->passed : nullptr;
  });
  return passed ? enqueue(stream, [passed] { return *passed; }) : CUDA_ERROR_INVALID_HANDLE;
}
CUresult query_event(CUevent event) {
  const Lock lock(driver().mutex);
  if (t_in_callback) return CUDA_ERROR_NOT_PERMITTED;
  FakeEvent* const known = find_event(event);
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  if (driver().sticky != CUDA_SUCCESS) return driver().sticky;
  return *known->passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult synchronize_event(CUevent event) {
  Lock lock(driver().mutex);
  FakeEvent* const known = find_event(event);
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  ++driver().synchronized_events;
  ++driver().blocked;
  driver().changed.notify_all();
  driver().changed.wait(lock, [&] { return *known->passed || driver().sticky != CUDA_SUCCESS; });
  --driver().blocked;
  return driver().sticky;
}

CUresult get_limit(size_t* value, CUlimit limit) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  *value = driver().limits[limit];
  return CUDA_SUCCESS;
}
CUresult set_limit(CUlimit limit, size_t value) {
  if (value == 77) return CUDA_ERROR_INVALID_VALUE;
  driver().limits[limit] = value;
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 2; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 100; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
      *value = driver().host_access != FakeDriver::HostAccess::unsupported;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

const std::unordered_map<std::string_view, void*> kDriverSymbols = {
    FAKE(cuCtxSetCurrent, set_current),
    FAKE(cuDevicePrimaryCtxRetain, retain),
    FAKE(cuDevicePrimaryCtxRelease_v2, release),
    FAKE(cuDevicePrimaryCtxReset_v2, reset),
    FAKE(cuDevicePrimaryCtxSetFlags_v2, set_primary_flags),
    FAKE(cuCtxCreate_v2, create_context),
    FAKE(cuCtxDestroy_v2, destroy_context),
    FAKE(cuCtxEnablePeerAccess, enable_peer),
    FAKE(cuCtxDisablePeerAccess, disable_peer),
    FAKE(cuCtxSynchronize, synchronize_context),
    FAKE(cuCtxGetCacheConfig, get_cache),
    FAKE(cuCtxGetLimit, get_limit),
    FAKE(cuCtxSetLimit, set_limit),
    FAKE(cuDeviceGetAttribute, device_attribute),
    FAKE(cuStreamCreateWithPriority, create_stream),
    FAKE(cuStreamDestroy_v2, destroy_stream),
    FAKE(cuStreamQuery, query_stream),
    FAKE(cuStreamGetFlags, stream_flags),
    FAKE(cuStreamSynchronize, synchronize_stream),
    FAKE(cuLaunchHostFunc, host_function),
    FAKE(cuStreamWaitEvent, wait_event),
    FAKE(cuEventCreate, create_event),
    FAKE(cuEventDestroy_v2, destroy_event),
    FAKE(cuEventRecord, record_event),
    FAKE(cuEventQuery, query_event),
    FAKE(cuEventSynchronize, synchronize_event),
    FAKE(cuStreamWaitValue32_v2, wait_value),
    FAKE(cuStreamWriteValue32_v2, write_value),
    FAKE(cuStreamCreate, create_plain_stream),
};

}  // namespace

FakeDriver& driver() {
  return *g_driver;
}

FakeDriver::FakeDriver() {
  g_driver = this;
  range_size = 64 * 1024 * 1024;
  // The same in each process, so that a fuzzer's inputs can name addresses; above AddressSanitizer's shadow.
  constexpr CUdeviceptr kWanted = CUdeviceptr{1} << 45;
  CUdeviceptr base = 0;
  reinterpret_cast<decltype(&cuMemAddressReserve)>(symbol("cuMemAddressReserve"))(&base, range_size, 0,
                                                                                  kWanted, 0);
  range_base = base;
}

FakeDriver::~FakeDriver() {
  for (FakeEvent* const event : events) delete event;  // contexts destroy their events as well
  g_driver = nullptr;
}

void* FakeDriver::symbol(const char* name) const {
  if (!stream_memory_operations && std::string_view(name).find("Value32") != std::string_view::npos)
    return nullptr;
  const auto found = kDriverSymbols.find(name);
  if (found != kDriverSymbols.end()) return found->second;
  for (const auto more : {fake_memory_symbol, fake_module_symbol, fake_graph_symbol, fake_array_symbol}) {
    if (void* const function = more(name)) return function;
  }
  return nullptr;
}

FakeStream* FakeDriver::stream_locked(CUstream stream) {
  if (!stream) {
    const auto context = contexts.find(t_current);
    return context == contexts.end() ? nullptr : context->second.get();
  }
  for (auto& known : streams) {
    if (known.get() == reinterpret_cast<FakeStream*>(stream)) return known.get();
  }
  return nullptr;
}

void FakeDriver::pump_locked() {
  bool moved = false;
  const auto run = [&moved](FakeStream& stream) {
    while ((!stream.held || stream.steps != 0) && !stream.work.empty() && stream.work.front()()) {
      stream.work.pop_front();
      stream.steps -= stream.steps != 0;
      moved = true;
    }
  };
  do {  // repeated because streams may wait for each other's events
    moved = false;
    for (auto& stream : streams) {
      if (stream) run(*stream);
    }
    for (auto& [context, stream] : contexts) run(*stream);
  } while (moved);
  changed.notify_all();
}

void FakeDriver::hold(int index) {
  Lock lock(mutex);
  // The command that creates the stream may not have been executed yet.
  changed.wait_for(lock, std::chrono::seconds(10), [&] {
    return index < 0 ? !contexts.empty() : streams.size() > static_cast<size_t>(index);
  });
  (index < 0 ? *contexts.begin()->second : *streams.at(static_cast<size_t>(index))).held = true;
}

void FakeDriver::let_go(int index) {
  const Lock lock(mutex);
  (index < 0 ? *contexts.begin()->second : *streams.at(static_cast<size_t>(index))).held = false;
  pump_locked();
}

void FakeDriver::step(int index, int count) {
  const Lock lock(mutex);
  (index < 0 ? *contexts.begin()->second : *streams.at(static_cast<size_t>(index))).steps += count;
  pump_locked();
}

void FakeDriver::await_blocked(int count) {
  Lock lock(mutex);
  changed.wait_for(lock, std::chrono::seconds(10), [&] { return blocked >= count; });
}

}  // namespace gpupool::worker::test
