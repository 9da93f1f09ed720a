#include "tests/server/worker/fake_driver.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <unordered_map>

namespace gpupool::worker::test {
namespace {

FakeDriver* g_driver = nullptr;
thread_local CUcontext t_current = nullptr;
thread_local bool t_in_callback = false;

using Lock = std::unique_lock<std::mutex>;

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
  if (driver().primary++ == 0) g_primary = add_context();
  *context = g_primary;
  return CUDA_SUCCESS;
}
CUresult release(CUdevice) {
  const Lock lock(driver().mutex);
  if (driver().primary == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--driver().primary == 0) driver().contexts.erase(g_primary);
  return CUDA_SUCCESS;
}
CUresult reset(CUdevice) { return CUDA_SUCCESS; }
CUresult create_context(CUcontext* context, unsigned, CUdevice) {
  const Lock lock(driver().mutex);
  t_current = *context = add_context();
  driver().memory_used += driver().context_bytes;
  return CUDA_SUCCESS;
}
CUresult destroy_context(CUcontext context) {
  const Lock lock(driver().mutex);
  if (driver().contexts.erase(context) != 1) return CUDA_ERROR_INVALID_CONTEXT;
  driver().memory_used -= driver().context_bytes;
  return CUDA_SUCCESS;
}
bool all_idle() {
  const auto idle = [](const auto& stream) { return !stream || stream->work.empty(); };
  return std::all_of(driver().streams.begin(), driver().streams.end(), idle) &&
         std::all_of(driver().contexts.begin(), driver().contexts.end(), [&](const auto& c) { return idle(c.second); });
}
CUresult synchronize_context() {
  Lock lock(driver().mutex);
  driver().changed.wait(lock, all_idle);
  return driver().sticky;
}
CUresult get_cache(CUfunc_cache* config) {
  *config = CU_FUNC_CACHE_PREFER_L1;
  return t_current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult create_stream(CUstream* stream, unsigned, int) {
  const Lock lock(driver().mutex);
  if (driver().sticky != CUDA_SUCCESS) return driver().sticky;
  driver().streams.push_back(std::make_unique<FakeStream>());
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
  driver().pump_locked();  // who waits for it may be in front of it
  return result;
}
CUresult create_plain_stream(CUstream* stream, unsigned flags) { return create_stream(stream, flags, 0); }
CUresult device_pointer(CUdeviceptr* device, void* memory, unsigned) {
  *device = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}

CUresult create_event(CUevent* event, unsigned) {
  const Lock lock(driver().mutex);
  if (!t_current) return CUDA_ERROR_INVALID_CONTEXT;
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
  uint64_t record = 0;
  {
    const Lock lock(driver().mutex);
    FakeEvent* const known = find_event(event);
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    record = known->record = ++driver().records;
    known->passed = false;
  }
  return enqueue(stream, [event, record] {
    FakeEvent* const known = find_event(event);
    if (known && known->record == record) known->passed = true;
    return true;
  });
}
CUresult wait_event(CUstream stream, CUevent event, unsigned) {
  return enqueue(stream, [event] {
    FakeEvent* const known = find_event(event);
    return !known || known->passed;
  });
}
CUresult query_event(CUevent event) {
  const Lock lock(driver().mutex);
  if (t_in_callback) return CUDA_ERROR_NOT_PERMITTED;
  FakeEvent* const known = find_event(event);
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  if (driver().sticky != CUDA_SUCCESS) return driver().sticky;
  return known->passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult synchronize_event(CUevent event) {
  Lock lock(driver().mutex);
  FakeEvent* const known = find_event(event);
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  ++driver().synchronized_events;
  ++driver().blocked;
  driver().changed.notify_all();
  driver().changed.wait(lock, [&] { return known->passed || driver().sticky != CUDA_SUCCESS; });
  --driver().blocked;
  return driver().sticky;
}

CUresult host_alloc(void** memory, size_t size, unsigned) {
  const Lock lock(driver().mutex);
  if (!t_current) return CUDA_ERROR_INVALID_CONTEXT;
  *memory = ::operator new(size, std::align_val_t(4096));
  driver().pinned.insert(*memory);
  return CUDA_SUCCESS;
}
CUresult host_free(void* memory) {
  const Lock lock(driver().mutex);
  if (driver().pinned.erase(memory) == 0) return CUDA_ERROR_INVALID_VALUE;
  ::operator delete(memory, std::align_val_t(4096));
  return CUDA_SUCCESS;
}
CUresult host_register(void* memory, size_t, unsigned) {
  const Lock lock(driver().mutex);
  if (!t_current) return CUDA_ERROR_INVALID_CONTEXT;
  return driver().registered.insert(memory).second ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
CUresult host_unregister(void* memory) {
  const Lock lock(driver().mutex);
  return driver().registered.erase(memory) != 0 ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
bool is_mapped(uint64_t address, size_t size) {
  auto place = driver().mapped.upper_bound(address);
  if (place == driver().mapped.begin()) return false;
  --place;
  return address + size <= place->first + place->second.first;
}
CUresult copy_bytes(void* to, const void* from, uint64_t checked, size_t size, CUstream stream) {
  {
    const Lock lock(driver().mutex);
    const auto global = reinterpret_cast<uint64_t>(driver().global.data());
    const bool is_global = checked >= global && checked + size <= global + driver().global.size();
    if (!is_global && !is_mapped(checked, size)) return CUDA_ERROR_INVALID_VALUE;
  }
  return enqueue(stream, [=] {
    std::memcpy(to, from, size);
    return true;
  });
}
CUresult copy_in(CUdeviceptr to, const void* from, size_t size, CUstream stream) {
  return copy_bytes(reinterpret_cast<void*>(to), from, to, size, stream);
}
CUresult copy_out(void* to, CUdeviceptr from, size_t size, CUstream stream) {
  return copy_bytes(to, reinterpret_cast<void*>(from), from, size, stream);
}
CUresult copy_2d(const CUDA_MEMCPY2D* copy, CUstream stream) {
  const bool in = copy->srcMemoryType == CU_MEMORYTYPE_HOST;
  for (size_t row = 0; row < copy->Height; ++row) {
    const CUresult result =
        in ? copy_in(copy->dstDevice + row * copy->dstPitch,
                     static_cast<const std::byte*>(copy->srcHost) + row * copy->srcPitch, copy->WidthInBytes, stream)
           : copy_out(static_cast<std::byte*>(copy->dstHost) + row * copy->dstPitch,
                      copy->srcDevice + row * copy->srcPitch, copy->WidthInBytes, stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
CUresult fill(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
  {
    const Lock lock(driver().mutex);
    if (!is_mapped(to, size)) return CUDA_ERROR_INVALID_VALUE;
  }
  return enqueue(stream, [=] {
    std::memset(reinterpret_cast<void*>(to), value, size);
    return true;
  });
}

CUresult create_memory(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp*, unsigned long long) {
  const Lock lock(driver().mutex);
  if (driver().memory_used + size > FakeDriver::kMemory) return CUDA_ERROR_OUT_OF_MEMORY;
  driver().memory_used += size;
  *handle = driver().next_handle++;
  driver().physical[*handle] = size;
  driver().fresh.insert(*handle);
  return CUDA_SUCCESS;
}
CUresult release_memory(CUmemGenericAllocationHandle handle) {
  const Lock lock(driver().mutex);
  const auto known = driver().physical.find(handle);
  if (known == driver().physical.end()) return CUDA_ERROR_INVALID_VALUE;
  driver().memory_used -= known->second;
  driver().physical.erase(known);
  return CUDA_SUCCESS;
}
CUresult map_memory(CUdeviceptr address, size_t size, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  const Lock lock(driver().mutex);
  if (!driver().physical.contains(handle) || is_mapped(address, 1)) return CUDA_ERROR_INVALID_VALUE;
  ::mprotect(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE);
  driver().mapped[address] = {size, handle};
  if (!driver().zeroes_memory && driver().fresh.erase(handle) != 0) {
    std::memset(reinterpret_cast<void*>(address), static_cast<int>(FakeDriver::kDirt), size);
  }
  return CUDA_SUCCESS;
}
CUresult unmap_memory(CUdeviceptr address, size_t size) {
  const Lock lock(driver().mutex);
  const auto known = driver().mapped.find(address);
  if (known == driver().mapped.end() || known->second.first != size) return CUDA_ERROR_INVALID_VALUE;
  driver().mapped.erase(known);
  ::mprotect(reinterpret_cast<void*>(address), size, PROT_NONE);
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
CUresult reserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr wished, unsigned long long) {
  // Aligned to the granularity, as a driver does it; what sticks out is never given back.
  void* const got = ::mmap(reinterpret_cast<void*>(wished), size + FakeDriver::kGranularity, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = (reinterpret_cast<CUdeviceptr>(got) + FakeDriver::kGranularity - 1) / FakeDriver::kGranularity *
             FakeDriver::kGranularity;
  return CUDA_SUCCESS;
}
CUresult free_range(CUdeviceptr address, size_t size) {
  ::munmap(reinterpret_cast<void*>(address), size);
  return CUDA_SUCCESS;
}

int zeroes_memory() { return driver().zeroes_memory; }
CUresult memory_info(size_t* free, size_t* total) {
  const Lock lock(driver().mutex);
  *total = FakeDriver::kMemory;
  *free = FakeDriver::kMemory - driver().memory_used;
  return CUDA_SUCCESS;
}
CUresult get_limit(size_t* value, CUlimit limit) {
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
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult load_module(CUmodule* module, const void* image, unsigned count, CUjit_option* options, void** values) {
  const Lock lock(driver().mutex);
  driver().images.emplace_back(static_cast<const char*>(image));
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_INFO_LOG_BUFFER) std::strcpy(static_cast<char*>(values[i]), "compiled");
  }
  if (driver().images.back().find("broken") != std::string::npos) return CUDA_ERROR_INVALID_PTX;
  *module = reinterpret_cast<CUmodule>(0xd0000 + 16 * driver().next_handle++);
  driver().modules.insert(*module);
  return CUDA_SUCCESS;
}
CUresult unload_module(CUmodule module) {
  const Lock lock(driver().mutex);
  return driver().modules.erase(module) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult get_function(CUfunction* function, CUmodule module, const char* name) {
  const Lock lock(driver().mutex);
  if (!driver().modules.contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  if (std::string_view(name) == "missing") return CUDA_ERROR_NOT_FOUND;
  auto& interned = driver().functions[name];
  interned = name;
  *function = reinterpret_cast<CUfunction>(&interned);
  return CUDA_SUCCESS;
}
CUresult get_global(CUdeviceptr* address, size_t* size, CUmodule, const char*) {
  *address = reinterpret_cast<CUdeviceptr>(driver().global.data());
  *size = driver().global.size();
  return CUDA_SUCCESS;
}
CUresult function_attribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = 100 + attribute;
  return attribute == 5 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
#if CUDA_VERSION >= 12040
CUresult parameter_info(CUfunction, size_t index, size_t* offset, size_t* size) {
  if (index >= 2) return CUDA_ERROR_INVALID_VALUE;
  *offset = 8 * index;
  *size = index == 0 ? 8 : 4;
  return CUDA_SUCCESS;
}
#endif
CUresult note_launch(CUfunction function, CUstream stream, FakeLaunch launch, void** extra) {
  launch.function = *reinterpret_cast<std::string*>(function);
  if (extra) {
    const auto* const bytes = static_cast<const std::byte*>(extra[1]);
    launch.parameters.assign(bytes, bytes + *static_cast<size_t*>(extra[3]));
  }
  return enqueue(stream, [launch] {
    driver().launches.push_back(launch);
    if (driver().in_kernel) driver().in_kernel();
    return true;
  });
}
CUresult launch(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned, unsigned, unsigned, unsigned,
                CUstream stream, void**, void** extra) {
  return note_launch(function, stream, {.grid = {x, y, z}}, extra);
}
CUresult launch_extended(const CUlaunchConfig* config, CUfunction function, void**, void** extra) {
  return note_launch(function, config->hStream,
                     {.grid = {config->gridDimX, config->gridDimY, config->gridDimZ}, .extended = true,
                      .attributes = config->numAttrs},
                     extra);
}

#define FAKE(name, function) {#name, reinterpret_cast<void*>(static_cast<decltype(&::name)>(&function))}
const std::unordered_map<std::string_view, void*> kSymbols = {
    FAKE(cuCtxSetCurrent, set_current),
    FAKE(cuDevicePrimaryCtxRetain, retain),
    FAKE(cuDevicePrimaryCtxRelease_v2, release),
    FAKE(cuDevicePrimaryCtxReset_v2, reset),
    FAKE(cuCtxCreate_v2, create_context),
    FAKE(cuCtxDestroy_v2, destroy_context),
    FAKE(cuCtxSynchronize, synchronize_context),
    FAKE(cuCtxGetCacheConfig, get_cache),
    FAKE(cuCtxGetLimit, get_limit),
    FAKE(cuCtxSetLimit, set_limit),
    FAKE(cuDeviceGetAttribute, device_attribute),
    FAKE(cuMemGetInfo_v2, memory_info),
    {"softgpu_zeroes_memory", reinterpret_cast<void*>(&zeroes_memory)},
    FAKE(cuStreamCreateWithPriority, create_stream),
    FAKE(cuStreamDestroy_v2, destroy_stream),
    FAKE(cuStreamQuery, query_stream),
    FAKE(cuStreamSynchronize, synchronize_stream),
    FAKE(cuLaunchHostFunc, host_function),
    FAKE(cuStreamWaitEvent, wait_event),
    FAKE(cuEventCreate, create_event),
    FAKE(cuEventDestroy_v2, destroy_event),
    FAKE(cuEventRecord, record_event),
    FAKE(cuEventQuery, query_event),
    FAKE(cuEventSynchronize, synchronize_event),
    FAKE(cuMemHostAlloc, host_alloc),
    FAKE(cuMemFreeHost, host_free),
    FAKE(cuMemHostRegister_v2, host_register),
    FAKE(cuMemHostUnregister, host_unregister),
    FAKE(cuMemcpyHtoDAsync_v2, copy_in),
    FAKE(cuMemcpyDtoHAsync_v2, copy_out),
    FAKE(cuMemcpy2DAsync_v2, copy_2d),
    FAKE(cuMemsetD8Async, fill),
    FAKE(cuMemCreate, create_memory),
    FAKE(cuMemRelease, release_memory),
    FAKE(cuMemMap, map_memory),
    FAKE(cuMemUnmap, unmap_memory),
    FAKE(cuMemSetAccess, set_access),
    FAKE(cuMemAddressReserve, reserve),
    FAKE(cuMemAddressFree, free_range),
    FAKE(cuModuleLoadDataEx, load_module),
    FAKE(cuModuleUnload, unload_module),
    FAKE(cuModuleGetFunction, get_function),
    FAKE(cuModuleGetGlobal_v2, get_global),
    FAKE(cuFuncGetAttribute, function_attribute),
#if CUDA_VERSION >= 12040
    FAKE(cuFuncGetParamInfo, parameter_info),
#endif
    FAKE(cuStreamWaitValue32_v2, wait_value),
    FAKE(cuStreamWriteValue32_v2, write_value),
    FAKE(cuStreamCreate, create_plain_stream),
    FAKE(cuMemHostGetDevicePointer_v2, device_pointer),
    FAKE(cuLaunchKernel, launch),
    FAKE(cuLaunchKernelEx, launch_extended),
};

}  // namespace

FakeDriver& driver() { return *g_driver; }

FakeDriver::FakeDriver() {
  g_driver = this;
  range_size = 64 * 1024 * 1024;
  CUdeviceptr base = 0;
  reserve(&base, range_size, 0, 0, 0);
  range_base = base;
}

FakeDriver::~FakeDriver() { g_driver = nullptr; }

void* FakeDriver::symbol(const char* name) const {
  if (!stream_memory_operations && std::string_view(name).find("Value32") != std::string_view::npos) return nullptr;
  const auto found = kSymbols.find(name);
  return found == kSymbols.end() ? fake_graph_symbol(name) : found->second;
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
  const auto run = [](FakeStream& stream) {
    while (!stream.held && !stream.work.empty() && stream.work.front()()) stream.work.pop_front();
  };
  for (auto& stream : streams) {
    if (stream) run(*stream);
  }
  for (auto& [context, stream] : contexts) run(*stream);
  changed.notify_all();
}

void FakeDriver::hold(int index) {
  Lock lock(mutex);
  // The command that makes it may still be on its way.
  changed.wait_for(lock, std::chrono::seconds(10),
                   [&] { return index < 0 ? !contexts.empty() : streams.size() > static_cast<size_t>(index); });
  (index < 0 ? *contexts.begin()->second : *streams.at(static_cast<size_t>(index))).held = true;
}

void FakeDriver::let_go(int index) {
  const Lock lock(mutex);
  (index < 0 ? *contexts.begin()->second : *streams.at(static_cast<size_t>(index))).held = false;
  pump_locked();
}

void FakeDriver::await_blocked(int count) {
  Lock lock(mutex);
  changed.wait_for(lock, std::chrono::seconds(10), [&] { return blocked >= count; });
}

}  // namespace gpupool::worker::test
