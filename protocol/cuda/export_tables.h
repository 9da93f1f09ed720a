// cuGetExportTable: the tables of functions that NVIDIA's runtime and libraries ask of a driver beside the
// documented API. What is known of them, and who needs which, is in docs/cuda-abi.md. The tables are constant
// and live as long as the library; the hooks say what only the library can know. Any thread may call any
// function of them.
#pragma once

#include <cstdint>

#include "protocol/cuda/context_local_storage.h"
#include "protocol/cuda/cuda_header.h"

namespace gpupool::cuda {

// A device as the runtime's validity check sees it.
struct DeviceIdentity {
  unsigned char uuid[16];  // as cuDeviceGetUuid (the first version) gives it
  int32_t pci_domain;
  int32_t pci_bus;
  int32_t pci_device;
};

// All but `stream_object` must be there. They may be called before cuInit and must not throw.
struct DriverHooks {
  // The primary context's handle, without retaining it; the same before and after it exists, and across its
  // reset.
  CUresult (*primary_context)(CUdevice device, CUcontext* context);
  CUresult (*current_context)(CUcontext* context);  // null where none is current
  CUresult (*context_id)(CUcontext context, unsigned long long* id);
  // Calls visit once per function of the module.
  CUresult (*enumerate_functions)(CUcontext context, CUmodule module,
                                  void (*visit)(void* user, CUfunction function), void* user);
  CUresult (*load_module)(CUmodule* module, const void* image);  // as cuModuleLoadData
  // Some non-null value that stands for the stream; where the hook is null, the stream's own handle does.
  CUresult (*stream_object)(CUcontext context, CUstream stream, void** object);
  CUresult (*driver_version)(int* version);
  CUresult (*device_count)(int* count);  // as cuDeviceGetCount: what CUDA_VISIBLE_DEVICES leaves
  CUresult (*device_identity)(CUdevice device, DeviceIdentity* identity);
};

// `hooks` must live as long as the library. CUDA_ERROR_INVALID_VALUE for the one table that a runtime is to
// do without; a table of CUDA_ERROR_NOT_SUPPORTED stubs for UUIDs that are not known.
CUresult get_export_table(const void** table, const CUuuid* id, const DriverHooks& hooks);

// What the runtime keeps per context. The library calls destroy_context() when a context is reset or
// destroyed, after the last call that could still use it.
ContextLocalStorage& context_local_storage();

}  // namespace gpupool::cuda
