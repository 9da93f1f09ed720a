// cuGetExportTable: tables of undocumented functions that NVIDIA's runtime and libraries request from a
// driver. docs/cuda-abi.md says what is known of them and who uses which. Used by the client library and
// softgpu. The tables are constant and live as long as the library; DriverHooks supplies what differs between
// libraries. Any thread may call any function of the tables.
#pragma once

#include <cstdint>

#include "protocol/driver/context_local_storage.h"
#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

// A device as the runtime's validity check sees it.
struct DeviceIdentity {
  unsigned char uuid[16];  // as cuDeviceGetUuid (the first version) gives it
  int32_t pci_domain;
  int32_t pci_bus;
  int32_t pci_device;
};

// All hooks but `stream_object` are required. They may be called before cuInit and must not throw.
struct DriverHooks {
  // Returns the primary context's handle without retaining it. The handle is the same before and after the
  // context exists, and across a reset.
  CUresult (*primary_context)(CUdevice device, CUcontext* context);
  CUresult (*current_context)(CUcontext* context);  // null if no context is current
  CUresult (*context_id)(CUcontext context, unsigned long long* id);
  // Calls visit once per function of the module.
  CUresult (*enumerate_functions)(CUcontext context, CUmodule module,
                                  void (*visit)(void* user, CUfunction function), void* user);
  CUresult (*load_module)(CUmodule* module, const void* image);  // as cuModuleLoadData
  // Returns a non-null value that stands for the stream. A null hook: the stream's handle is used.
  CUresult (*stream_object)(CUcontext context, CUstream stream, void** object);
  CUresult (*driver_version)(int* version);
  CUresult (*device_count)(int* count);  // as cuDeviceGetCount: the devices in CUDA_VISIBLE_DEVICES
  CUresult (*device_identity)(CUdevice device, DeviceIdentity* identity);
};

// `hooks` must live as long as the library. CUDA_ERROR_INVALID_VALUE for the one table that cudart must do
// without; a table of CUDA_ERROR_NOT_SUPPORTED stubs for unknown UUIDs.
CUresult get_export_table(const void** table, const CUuuid* id, const DriverHooks& hooks);

// The values that the runtime keeps per context. The library calls destroy_context() when a context is reset
// or destroyed, after the last call that could use them.
ContextLocalStorage& context_local_storage();

}  // namespace gpupool::cuda
