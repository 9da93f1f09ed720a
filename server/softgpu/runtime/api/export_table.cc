// cuGetExportTable: undocumented functions of the driver that NVIDIA's runtime calls.
#include <cstring>

#include "protocol/driver/export_tables.h"
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/module.h"

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

CUresult primary_context(CUdevice index, CUcontext* context) {
  return call([&] {
    Device* device = runtime().device(index);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *context = make_handle<CUcontext>(device->primary().handle());
    return CUDA_SUCCESS;
  });
}

CUresult context_id(CUcontext handle, unsigned long long* id) {
  return call([&] {
    const Ref<Context> context = find_context(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    *id = context->id();
    return CUDA_SUCCESS;
  });
}

CUresult device_identity(CUdevice index, cuda::DeviceIdentity* identity) {
  return call([&] {
    Device* device = runtime().device(index);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    std::memcpy(identity->uuid, device->uuid().bytes, sizeof identity->uuid);
    identity->pci_domain = device->pci().domain;
    identity->pci_bus = device->pci().bus;
    identity->pci_device = device->pci().device;
    return CUDA_SUCCESS;
  });
}

CUresult enumerate_functions(CUcontext, CUmodule handle, void (*visit)(void* user, CUfunction function),
                             void* user) {
  return call([&] {
    const Ref<Module> module = find<Module>(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    for (const KernelInfo& kernel : module->program().kernels()) {
      if (const Ref<Function> function = module->function(kernel.name)) {
        visit(user, make_handle<CUfunction>(function->handle));
      }
    }
    return CUDA_SUCCESS;
  });
}

constexpr cuda::DriverHooks kHooks{
    .primary_context = primary_context,
    .current_context = cuCtxGetCurrent,
    .context_id = context_id,
    .enumerate_functions = enumerate_functions,
    .load_module = cuModuleLoadData,
    .stream_object = nullptr,
    .driver_version = cuDriverGetVersion,
    .device_count = cuDeviceGetCount,
    .device_identity = device_identity,
};

}  // namespace

CUDA_EXPORT CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return cuda::get_export_table(table, id, kHooks);
}
