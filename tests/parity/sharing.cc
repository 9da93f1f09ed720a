// Calls that share memory and events between processes, as far as one process can test them.
// tests/e2e/interprocess_test.cc tests the sharing itself.
#include <unistd.h>

#include <cstring>

#include "tests/parity/show.h"

namespace parity {
namespace {

constexpr unsigned kOpen = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kWindows = CU_MEM_HANDLE_TYPE_WIN32;

void legacy_memory() {
  CUdeviceptr address = 0, pooled = 0, opened = 0;
  CUipcMemHandle handle{}, again{}, garbage{};
  cuMemAlloc(&address, 1 << 20);
  cuMemAllocAsync(&pooled, 4096, nullptr);
  cuStreamSynchronize(nullptr);
  SHOW(cuIpcGetMemHandle(nullptr, address));
  SHOW(cuIpcGetMemHandle(&handle, 0));
  SHOW(cuIpcGetMemHandle(&handle, kWildAddress));
  SHOW(cuIpcGetMemHandle(&handle, kHighAddress));
  SHOW(cuIpcGetMemHandle(&handle, pooled));
  SHOW(cuIpcGetMemHandle(&handle, address));
  SHOW_VALUE(cuIpcGetMemHandle(&again, address + 100), "%d", std::memcmp(&handle, &again, sizeof handle));
  SHOW(cuIpcOpenMemHandle(nullptr, handle, kOpen));
  SHOW(cuIpcOpenMemHandle(&opened, handle, 0));
  SHOW(cuIpcOpenMemHandle(&opened, handle, 77));
  SHOW(cuIpcOpenMemHandle(&opened, handle, kOpen));
  SHOW(cuIpcOpenMemHandle(&opened, garbage, kOpen));
  std::memset(&garbage, 0xff, sizeof garbage);
  SHOW(cuIpcOpenMemHandle(&opened, garbage, kOpen));
  SHOW(cuIpcCloseMemHandle(address));
  SHOW(cuIpcCloseMemHandle(0));
  SHOW(cuIpcCloseMemHandle(kWildAddress));
  SHOW(cuMemsetD8(address, 1, 1 << 20));
  SHOW(cuMemFree(address));
  SHOW(cuIpcGetMemHandle(&handle, address));
  SHOW(cuMemFree(pooled));
}

void legacy_events() {
  CUevent shared = nullptr, plain = nullptr, opened = nullptr;
  CUipcEventHandle handle{}, garbage{};
  SHOW(cuEventCreate(nullptr, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  SHOW(cuEventCreate(&shared, CU_EVENT_INTERPROCESS));
  SHOW(cuEventCreate(&shared, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  SHOW(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
  SHOW(cuIpcGetEventHandle(nullptr, shared));
  SHOW(cuIpcGetEventHandle(&handle, nullptr));
  SHOW(cuIpcGetEventHandle(&handle, wild<CUevent>()));
  SHOW(cuIpcGetEventHandle(&handle, plain));
  SHOW(cuIpcGetEventHandle(&handle, shared));
  SHOW(cuIpcOpenEventHandle(nullptr, handle));
  SHOW(cuIpcOpenEventHandle(&opened, handle));
  SHOW(cuIpcOpenEventHandle(&opened, garbage));
  SHOW(cuEventQuery(shared));
  SHOW(cuEventRecord(shared, nullptr));
  SHOW(cuStreamWaitEvent(nullptr, shared, 0));
  SHOW(cuEventSynchronize(shared));
  SHOW(cuEventQuery(shared));
  float milliseconds = 0;
  SHOW(cuEventElapsedTime(&milliseconds, shared, shared));
  SHOW(cuEventDestroy(shared));
  SHOW(cuIpcGetEventHandle(&handle, shared));
  SHOW(cuEventRecord(shared, nullptr));
}

void descriptors() {
  constexpr size_t kSize = 2 << 20;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle plain = 0, memory = 0, imported = 0, back = 0;
  int descriptor = -1;
  cuMemCreate(&plain, kSize, &prop, 0);
  prop.requestedHandleTypes = kWindows;
  SHOW(cuMemCreate(&memory, kSize, &prop, 0));
  prop.requestedHandleTypes = kDescriptor;
  SHOW(cuMemCreate(&memory, kSize, &prop, 0));
  SHOW(cuMemExportToShareableHandle(nullptr, memory, kDescriptor, 0));
  SHOW(cuMemExportToShareableHandle(&descriptor, 0, kDescriptor, 0));
  SHOW(cuMemExportToShareableHandle(&descriptor, 0xdeadbee0, kDescriptor, 0));
  SHOW(cuMemExportToShareableHandle(&descriptor, plain, kDescriptor, 0));
  SHOW(cuMemExportToShareableHandle(&descriptor, memory, kWindows, 0));
  SHOW(cuMemExportToShareableHandle(&descriptor, memory, CU_MEM_HANDLE_TYPE_NONE, 0));
  SHOW(cuMemExportToShareableHandle(&descriptor, memory, kDescriptor, 77));
  SHOW_VALUE(cuMemExportToShareableHandle(&descriptor, memory, kDescriptor, 0), "%d", descriptor > 2);
  void* const shared = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  SHOW(cuMemImportFromShareableHandle(nullptr, shared, kDescriptor));
  SHOW(cuMemImportFromShareableHandle(&imported, wild<void*>(~0ull), kDescriptor));
  SHOW(cuMemImportFromShareableHandle(&imported, nullptr, kDescriptor));
  SHOW(cuMemImportFromShareableHandle(&imported, shared, kWindows));
  SHOW(cuMemImportFromShareableHandle(&imported, shared, kDescriptor));
  ::close(descriptor);
  CUmemAllocationProp of{};
  SHOW_VALUE(cuMemGetAllocationPropertiesFromHandle(&of, imported), "%d %d %d", of.type, of.location.id,
             of.requestedHandleTypes);
  CUdeviceptr range = 0;
  cuMemAddressReserve(&range, kSize, 0, 0, 0);
  SHOW(cuMemMap(range, 2 * kSize, 0, imported, 0));
  SHOW(cuMemMap(range, kSize, 0, imported, 0));
  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  SHOW(cuMemSetAccess(range, kSize, &access, 1));
  SHOW(cuMemsetD8(range, 3, kSize));
  unsigned long long types = 0;
  unsigned capable = 9;
  SHOW_VALUE(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, range), "%llu", types);
  SHOW_VALUE(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, range), "%u",
             capable);
  CUipcMemHandle legacy{};
  SHOW(cuIpcGetMemHandle(&legacy, range));
  SHOW(cuMemFree(range));
  SHOW(cuMemRelease(imported));
  SHOW(cuMemRelease(imported));
  SHOW(cuMemExportToShareableHandle(&descriptor, imported, kDescriptor, 0));
  SHOW(cuMemRetainAllocationHandle(&back, reinterpret_cast<void*>(range + 100)));
  SHOW(cuMemRelease(back));
  SHOW(cuMemUnmap(range, kSize));
  SHOW(cuMemRetainAllocationHandle(&back, reinterpret_cast<void*>(range)));
  SHOW(cuMemAddressFree(range, kSize));
  SHOW(cuMemRelease(memory));
  SHOW(cuMemRelease(plain));
}

}  // namespace

void sharing() {
  legacy_memory();
  legacy_events();
  descriptors();
}

}  // namespace parity
