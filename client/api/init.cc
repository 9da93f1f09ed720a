// Start-up: cuInit, versions, error names, symbol look-up and export tables. Only cuInit uses the network.
#include <atomic>

#include "client/process/driver_version.h"
#include "client/process/trace.h"
#include "client/session/call.h"
#include "protocol/calls/errors.h"
#include "protocol/driver/driver_version.h"
#include "protocol/driver/export_tables.h"
#include "protocol/driver/exports.h"
#include "protocol/driver/pci_address.h"

using namespace gpupool;
using namespace gpupool::client;

// Marks this library as a client: the worker's loader rejects it as a device library, and poold refuses to
// start on it.
CUDA_EXPORT const char gpupool_client_version[] = GPUPOOL_VERSION;

namespace {

// The CUDA version to report: GPUPOOL_DRIVER_VERSION; else the newest version that this library implements;
// once connected, the oldest of that and of the servers' drivers.
int driver_version() {
  if (const auto setting = driver_version_setting()) return *setting;
  int version = cuda::kNewestSupportedVersion;
  if (ready() != CUDA_SUCCESS) return version;
  for (const auto& session : sessions()) version = std::min(version, session->driver_version());
  return version;
}

// The version that cuDriverGetVersion last returned in this thread, and in any thread. Runtimes ask before
// cuInit, when the servers' versions are unknown; their validity check must use the version that they were
// given.
thread_local int reported_here = 0;
std::atomic<int> reported_anywhere{0};

int reported_version() {
  if (reported_here != 0) return reported_here;
  const int reported = reported_anywhere.load(std::memory_order_relaxed);
  return reported != 0 ? reported : driver_version();
}

CUresult device_identity(CUdevice ordinal, cuda::DeviceIdentity* identity) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  const Device* device = find_device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(identity->uuid, device->uuid.data(), sizeof identity->uuid);
  const cuda::PciAddress address = cuda::parse_pci_address(device->pci_bus_id).value_or(cuda::PciAddress{});
  identity->pci_domain = static_cast<int32_t>(address.domain);
  identity->pci_bus = static_cast<int32_t>(address.bus);
  identity->pci_device = static_cast<int32_t>(address.device);
  return CUDA_SUCCESS;
}

CUresult primary_context(CUdevice ordinal, CUcontext* context) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  const Device* device = find_device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *context = cuda::handle_from_bits<CUcontext>(device->primary->handle);
  return CUDA_SUCCESS;
}

// For libraries that list a module's functions through an export table.
CUresult enumerate_functions([[maybe_unused]] CUcontext context, [[maybe_unused]] CUmodule module,
                             [[maybe_unused]] void (*visit)(void*, CUfunction), [[maybe_unused]] void* user) {
#if CUDA_VERSION >= 12040
  return guarded([&]() -> CUresult {
    unsigned count = 0;
    if (const CUresult result = cuModuleGetFunctionCount(&count, module);
        result != CUDA_SUCCESS || count == 0)
      return result;
    std::vector<CUfunction> functions(count);
    if (const CUresult result = cuModuleEnumerateFunctions(functions.data(), count, module);
        result != CUDA_SUCCESS)
      return result;
    for (const CUfunction function : functions) visit(user, function);
    return CUDA_SUCCESS;
  });
#else
  return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

CUresult traced(CUresult result, void** address) {
  return guarded([&] {
    trace::start();
    if (trace::on() && result == CUDA_SUCCESS && *address) *address = trace::counted(*address);
    return result;
  });
}

constexpr cuda::DriverHooks kHooks = {
    .primary_context = primary_context,
    .current_context = [](CUcontext* context) { return cuCtxGetCurrent(context); },
    .context_id =
        [](CUcontext context, unsigned long long* id) {
#if CUDA_VERSION >= 12000
          return cuCtxGetId(context, id);
#else
          return *id = cuda::handle_bits(context), CUDA_SUCCESS;
#endif
        },
    .enumerate_functions = enumerate_functions,
    .load_module = [](CUmodule* module, const void* image) { return cuModuleLoadData(module, image); },
    .stream_object = nullptr,
    .driver_version = [](int* version) { return *version = reported_version(), CUDA_SUCCESS; },
    .device_count = [](int* count) { return cuDeviceGetCount(count); },
    .device_identity = device_identity,
};

}  // namespace

CUDA_EXPORT CUresult cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return guarded([] { return initialise(); });
}

CUDA_EXPORT CUresult cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = reported_here = driver_version();
  reported_anywhere.store(*version, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = cuda::error_name(error);
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = cuda::error_description(error);
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_EXPORT CUresult cuGetProcAddress(const char* symbol, void** address, int version, cuuint64_t flags) {
  return traced(cuda::get_proc_address_v1(symbol, address, version, flags, driver_version()), address);
}

#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** address, int version, cuuint64_t flags,
                                         CUdriverProcAddressQueryResult* status) {
  return traced(cuda::get_proc_address_v2(symbol, address, version, flags, reinterpret_cast<int*>(status),
                                          driver_version()),
                address);
}
#endif

CUDA_EXPORT CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  return cuda::get_export_table(table, id, kHooks);
}
